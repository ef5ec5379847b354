"""From messages to the tokens of a prompt, by the model's chat template or another one. Knows the vocabulary, no memory."""

from dataclasses import dataclass

from tokencli.core import OWN_TEMPLATE, Begun, Request
from tokencli.decode.prefix import common_prefix
from tokencli.engine import chat_template
from tokencli.engine.known_templates import TEMPLATES, recognised
from tokencli.engine.vocabulary import NativeVocabulary

THINK_TAGS = ("<think>", "</think>")
CLOSE_THINKING = f"\n{THINK_TAGS[1]}\n\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is given. `inside`: it ends in the middle of reasoning. The first `settled` tokens do not depend on what is
    answered; the last `begun` of them are an answer that was broken off.
    """

    tokens: list[int]
    inside: bool = False
    settled: int = 0
    begun: int = 0
    notes: tuple[str, ...] = ()


def template_name(vocabulary: NativeVocabulary) -> str | None:
    """Which chat template the model has: its own, one recognised by its control tokens, or None."""
    return OWN_TEMPLATE if vocabulary.chat_template() else recognised(vocabulary.is_control)


def make_prompt(vocabulary: NativeVocabulary, wanted: Request, settle: bool = False) -> Prompt:
    """The prompt; `settle`: find out `settled`, too. Raises BadModelFile where the template fails, UsageError without text."""
    template = wanted.template or _template(vocabulary)
    if template is None:
        text = "\n\n".join(message.content for message in wanted.messages)
        tokens = vocabulary.prompt_tokens(text)
        whole = vocabulary.prompt_tokens(text + wanted.begun.answer) if wanted.begun.answer else tokens
        return Prompt(whole, begun=len(whole) - len(tokens))
    bos, eos = vocabulary.special_text("bos"), vocabulary.special_text("eos")
    asked = chat_template.render(template, wanted.messages, bos, eos, wanted.thinking)
    vocabulary.show_tags(THINK_TAGS)
    opened = asked.text.rstrip().endswith(THINK_TAGS[0])
    tokens = vocabulary.prompt_tokens(asked.text)
    whole = vocabulary.prompt_tokens(asked.text + _begun(wanted.begun, opened)) if wanted.begun else tokens
    return Prompt(
        tokens=whole,
        inside=not wanted.begun.answer and (opened or bool(wanted.begun.reasoning)),
        settled=_settled(vocabulary, template, wanted, tokens) if settle else 0,
        begun=len(whole) - len(tokens),
        notes=asked.notes,
    )


def _settled(vocabulary: NativeVocabulary, template: str, wanted: Request, tokens: list[int]) -> int:
    bos, eos = vocabulary.special_text("bos"), vocabulary.special_text("eos")
    told = chat_template.render(template, wanted.messages, bos, eos, wanted.thinking, ask=False).text
    return common_prefix(tokens, vocabulary.prompt_tokens(told)) if told else 0


def _template(vocabulary: NativeVocabulary) -> str | None:
    name = template_name(vocabulary)
    return vocabulary.chat_template() if name == OWN_TEMPLATE else TEMPLATES.get(name or "")


def _begun(begun: Begun, opened: bool) -> str:
    """The answer so far as the model wrote it."""
    if not begun.reasoning:
        return begun.answer
    reasoning = begun.reasoning if opened else f"{THINK_TAGS[0]}\n{begun.reasoning}"
    return reasoning + CLOSE_THINKING + begun.answer if begun.answer else reasoning

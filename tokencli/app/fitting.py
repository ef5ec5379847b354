"""What a model is given of a conversation that outgrows the context: all, the latest part, or a summary and the latest part."""

from collections.abc import Generator

from tokencli.app.chat_engine import ChatEngine
from tokencli.app.chat_settings import ChatSettings
from tokencli.app.conversation import Conversation
from tokencli.core import Begun, Done, Event, FinishReason, Message, Note, Prefilling, Request, Sampling, Text
from tokencli.errors import DoesNotFit

_ROOM = 256  # tokens left for an answer, or an eighth of a small context
_SUMMARY_TOKENS = 320
_CUT: tuple[FinishReason, ...] = ("cancelled", "timeout")
_ASK_FOR_SUMMARY = (
    "Summarise our conversation so far in at most 150 words, for yourself to go on from: facts, names, numbers, decisions and "
    "open questions. Write only the summary."
)


class Fitting:
    """The first `skipped` messages are left out of what the model gets; `summary` stands for them where there is one.

    Both are remembered with the conversation. What is left out stays in it.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.skipped = min(int(conversation.remembered("skipped") or 0), len(conversation.messages))
        self.summary = conversation.remembered("summary") if self.skipped else None

    def request(self, settings: ChatSettings, seed_offset: int) -> Request:
        return settings.request(self._conversation.for_model(self.skipped, self.summary), self._conversation.begun, seed_offset)

    def cut_to(self, count: int) -> None:
        """The conversation was cut: nothing is left out where that was part of it."""
        if count <= self.skipped:
            self._leave_out(0, None)

    def made_to_fit(self, engine: ChatEngine, settings: ChatSettings) -> Generator[Event, None, Done | None]:
        """Leave out what the policy allows until an answer has room. Raises DoesNotFit where that is not enough.

        The Done of a summary that was cut is returned: nothing is left out then, and no answer may follow.
        """
        tokens = engine.count(self.request(settings, 0))
        if tokens + _room(engine.context) <= engine.context:
            return None
        if settings.overflow == "stop":
            if tokens >= engine.context:
                raise DoesNotFit(
                    f"the conversation has {tokens} tokens, the context holds {engine.context}",
                    "/clear begins anew, /undo takes back, /set overflow drop or compact goes on without the oldest messages",
                )
            return None
        before, old = self.skipped, self._leaving_room(engine, settings)
        if old == before:
            raise DoesNotFit(f"the last message alone leaves no room in a context of {engine.context} tokens", "shorten it")
        summary = None
        if settings.overflow == "compact":
            yield Note(f"the context of {engine.context} tokens is full: the oldest {old} messages are summed up")
            summary, done = yield from self._summed_up(engine, settings, old)
            if done and done.finish_reason in _CUT:
                return done
        self._leave_out(old, summary)
        if summary is None:
            yield Note(f"the context of {engine.context} tokens is full: the oldest {old} messages are left out from now on")
        return None

    def goes_on_after(self, done: Done, engine: ChatEngine, settings: ChatSettings) -> bool:
        """Whether the answer was cut by the context's end and the policy makes room for the rest of it."""
        full = done.stats.prompt_tokens + done.stats.tokens >= engine.context
        at_limit = settings.max_tokens is not None and done.stats.tokens >= settings.max_tokens
        if done.finish_reason != "length" or not full or at_limit or settings.overflow == "stop":
            return False
        return self._leaving_room(engine, settings) > self.skipped

    def _leaving_room(self, engine: ChatEngine, settings: ChatSettings) -> int:
        """How many messages to leave out so that a third of the context is free; before a user's message, the last at most."""
        messages = self._conversation.messages
        starts = [at for at, message in enumerate(messages) if message.role == "user" and at > self.skipped]
        for start in starts:
            shorter = settings.request(self._conversation.for_model(start, self.summary), self._conversation.begun, 0)
            if engine.count(shorter) <= engine.context - max(_room(engine.context), engine.context // 3):
                return start
        if not starts:
            return self.skipped
        last = settings.request(self._conversation.for_model(starts[-1], None), self._conversation.begun, 0)
        return starts[-1] if engine.count(last) + _room(engine.context) <= engine.context else self.skipped

    def _summed_up(
        self, engine: ChatEngine, settings: ChatSettings, old: int
    ) -> Generator[Event, None, tuple[str | None, Done | None]]:
        """The model's own summary of what is left out, and its Done; None where it wrote no whole one, or cannot read it all."""
        messages = (*self._conversation.for_model(self.skipped, self.summary, upto=old), Message("user", _ASK_FOR_SUMMARY))
        request = ChatSettings(Sampling(temperature=0), _SUMMARY_TOKENS, thinking="off", template=settings.template).request(
            messages, Begun(), 0
        )
        if engine.count(request) + _SUMMARY_TOKENS // 2 > engine.context:
            return None, None
        text, done = "", None
        for event in engine.generate(request):
            if isinstance(event, Prefilling):
                yield event
            if isinstance(event, Text) and event.kind == "answer":
                text += event.text
            if isinstance(event, Done):
                done = event
        whole = done is not None and done.finish_reason == "stop"
        return (text.strip() if whole else "") or None, done

    def _leave_out(self, count: int, summary: str | None) -> None:
        self.skipped, self.summary = count, summary
        self._conversation.remember("skipped", str(count))
        self._conversation.remember("summary", summary or "")


def _room(context: int) -> int:
    return min(_ROOM, context // 8)

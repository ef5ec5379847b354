"""The options that commands share, each written once: name, placeholder and help. Checks their form, decides nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokencli.errors import UsageError

if TYPE_CHECKING:
    from tokencli.plan.choose import Wishes

KV_TYPES = ("f16", "q8_0", "q4_0")
OVERFLOWS = ("stop", "drop", "compact")
THINKING_VIEWS = ("show", "hide")
THINKING = ("on", "off", "low", "medium", "high")
MOST_DRAFT_TOKENS = 64


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=True)


def known_models(incomplete: str) -> list[str]:
    """What a shell completes a model's name to: aliases and what was fetched. Reads two files, asks nobody."""
    from tokencli.app import World

    world = World()
    try:
        names = [*world.catalogue(), *(each.name for each in world.pins.all())]
    except UsageError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An alias, hf:ORG/REPO[:QUANT], or a path to a .gguf or a folder.",
        autocompletion=known_models,
    ),
]
RunModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="An alias, hf:ORG/REPO[:QUANT], or a path. Without it the best for this machine are named.",
        show_default=False,
        autocompletion=known_models,
    ),
]
Quant = Annotated[str | None, _option("--quant", "NAME", "Which of a repository's or folder's files, by quant or by name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Download without asking.")]
Prompt = Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="The prompt.", show_default=False)]
PromptFile = Annotated[Path | None, _option("--file", "FILE", "Read the prompt from a file.")]
System = Annotated[str | None, _option("--system", "TEXT", "The system message.")]
MaxTokens = Annotated[int | None, _option("--max-tokens", "N", "Stop after N tokens.")]
Timeout = Annotated[float | None, _option("--timeout", "SECONDS", "Stop after so long, loading included.")]
Stop = Annotated[list[str] | None, _option("--stop", "TEXT", "Stop before this text; may be given more than once.")]
Temperature = Annotated[float, _option("--temperature", "T", "0 always takes the most probable token.")]
TopK = Annotated[int, _option("--top-k", "N", "Choose among the N most probable tokens; 0 is off.")]
TopP = Annotated[float, _option("--top-p", "P", "Choose among the most probable that make up this share; 1 is off.")]
MinP = Annotated[float, _option("--min-p", "P", "Leave out what is less than this share as probable as the best.")]
Seed = Annotated[int | None, _option("--seed", "N", "Same seed, same text. Random if not given.")]
GpuLayers = Annotated[str | None, _option("--gpu-layers", "N|all", "Layers on the GPU. Decided for you if not given.")]
CpuMoe = Annotated[
    str | None, _option("--cpu-moe", "N|all", "Keep the experts of the first N blocks on the CPU. Decided for you.")
]
Context = Annotated[int | None, _option("--context", "N", "Context size in tokens: prompt and answer together.")]
Threads = Annotated[int | None, _option("--threads", "N", "CPU threads. One per physical core if not given.")]
Profile = Annotated[str | None, _option("--profile", "NAME", "The hardware profile. Chosen by the device if not given.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", envvar="TOKENCLI_DEVICE", help="The device: cpu, or as llama.cpp calls it (Vulkan0, CUDA0)."
    ),
]
Machine = Annotated[str | None, _option("--machine", "NAME|FILE", "Plan for another computer: a snapshot or a .json file.")]
Check = Annotated[bool, typer.Option("--check", help="Compare the plan with llama.cpp's own dry run, term by term.")]
Load = Annotated[bool, typer.Option("--load", help="Compare it with a real load and a long prompt instead: reserve and peak.")]
KvType = Annotated[str | None, _option("--kv-type", "TYPE", "The KV cache's element type: f16, q8_0 or q4_0.")]
Ubatch = Annotated[int | None, _option("--ubatch", "N", "Tokens computed at once while a prompt is read. Decided for you.")]
TargetTps = Annotated[float | None, _option("--target-tps", "N", "The plan must decode so many tokens per second.")]
MaxLoss = Annotated[
    float | None, _option("--max-loss", "P", "The quant may lose so many percent of perplexity, as published or measured.")
]
Why = Annotated[str | None, _option("--why", "NAME", "Say why this quant or split (whole, experts, layers, cpu) was not taken.")]
Draft = Annotated[str | None, _option("--draft", "auto|off|ngram|MODEL", "What guesses the next tokens.")]
DraftTokens = Annotated[str | None, _option("--draft-tokens", "auto|N", "Tokens guessed at once.")]
ShowDraft = Annotated[bool, typer.Option("--show-draft", help="Colour the tokens that the draft had guessed.")]
ChatModel = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="An alias or a .gguf file; the session's own if not given.", show_default=False),
]
GoOn = Annotated[bool, typer.Option("--continue", help="Go on with the latest conversation.")]
Grammar = Annotated[Path | None, _option("--grammar", "FILE", "Let the answer be only what this GBNF grammar allows.")]
JsonSchema = Annotated[Path | None, _option("--json-schema", "FILE", "Let the answer be JSON of this schema only.")]
ShowStats = Annotated[bool, typer.Option("--stats", help="Show how the draft did: depth, time, gain.")]
Session = Annotated[str | None, _option("--session", "NAME", "Go on with this conversation, or begin it.")]
ListSessions = Annotated[bool, typer.Option("--list", help="List the saved conversations and end.")]
Search = Annotated[str | None, _option("--search", "TEXT", "List those with this text in name or messages and end.")]
Delete = Annotated[str | None, _option("--delete", "NAME", "Delete a saved conversation and end.")]
Plain = Annotated[bool, typer.Option("--plain", help="Show the answers as the model writes them, without rendering.")]
Overflow = Annotated[
    str, _option("--overflow", "|".join(OVERFLOWS), "When the context is full: stop, drop old turns, or sum up.")
]
Template = Annotated[str | None, _option("--template", "NAME|FILE", "The chat template, where the model's own will not do.")]
Think = Annotated[
    str | None,
    _option("--think", "|".join((*THINKING_VIEWS, *THINKING)), "Show or hide the reasoning; how much to ask for."),
]
MaxThinking = Annotated[int | None, _option("--max-thinking", "N", "End the reasoning after N tokens.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but the answer and errors.")]


def check_range(*limits: tuple[str, float | None, float, float]) -> None:
    """Raises UsageError for the first (option, value, least, most) outside its limits."""
    for option, value, least, most in limits:
        if value is not None and not least <= value <= most:
            raise UsageError(f"{option} {value} is out of range", f"give a value from {least:,} to {most:,}")


def draft_tokens(text: str | None) -> int | None:
    """`--draft-tokens`: a count, or None for "auto". Raises UsageError."""
    if text is None or text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_DRAFT_TOKENS:
        raise UsageError(f"--draft-tokens {text} is out of range", f"use auto, or 1 to {MOST_DRAFT_TOKENS}")
    return int(text)


def gpu_layers(text: str | None) -> int | None:
    """`--gpu-layers`: a count, -1 for "all", None for "decide for me". Raises UsageError."""
    return _count_or_all("--gpu-layers", text)


def cpu_moe(text: str | None) -> int | None:
    """`--cpu-moe`: likewise."""
    return _count_or_all("--cpu-moe", text)


def _count_or_all(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if text == "all":
        return -1
    if not text.isdecimal():
        raise UsageError(f"{option} {text} is neither a number nor all", f"use {option} 0, a count, or all")
    return int(text)


def grammar(file: Path | None) -> str | None:
    """`--grammar`: the file's text. Raises UsageError."""
    return _text("--grammar", file) if file else None


def json_schema(file: Path | None) -> str | None:
    """`--json-schema`: the file's text, found to be a schema that can be kept to. Raises UsageError."""
    if file is None:
        return None
    from tokencli.decode.schema import check_schema

    text = _text("--json-schema", file)
    check_schema(text)
    return text


def _text(option: str, file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"the file of {option}, {file}, cannot be read: {reason}", "check the path") from None


def one_of(option: str, text: str | None, choices: Sequence[str]) -> str | None:
    """Raises UsageError for a value that is none of the choices."""
    if text is not None and text not in choices:
        raise UsageError(f"{option} {text} is not known", "use " + ", ".join(choices))
    return text


def check_sampling(
    temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None, seed: int | None
) -> None:
    """Raises UsageError for the first that is out of range."""
    check_range(
        ("--temperature", temperature, 0, 100),
        ("--top-k", top_k, 0, 1 << 31),
        ("--top-p", top_p, 0, 1),
        ("--min-p", min_p, 0, 1),
        ("--seed", seed, 0, (1 << 64) - 1),
    )


def wishes(
    layers: str | None,
    expert_blocks: str | None,
    device: str | None,
    profile: str | None,
    context: int | None,
    cache_type: str | None,
    threads: int | None,
    draft: str | None,
    depth: str | None,
    quant: str | None = None,
    ubatch: int | None = None,
    target_tps: float | None = None,
    max_loss: float | None = None,
) -> "Wishes":
    """What was asked for of a plan, its form checked. Raises UsageError."""
    from tokencli.plan.choose import Wishes

    check_range(
        ("--context", context, 1, 1 << 24),
        ("--threads", threads, 1, 1024),
        ("--ubatch", ubatch, 1, 8192),
        ("--target-tps", target_tps, 0.01, 100_000),
        ("--max-loss", max_loss, 0, 1000),
    )
    if draft == "off" and draft_tokens(depth) is not None:
        raise UsageError(f"--draft off guesses no tokens, --draft-tokens {depth} wants some", "leave one of them out")
    return Wishes(
        gpu_layers=gpu_layers(layers),
        cpu_moe=cpu_moe(expert_blocks),
        device=device,
        profile=profile,
        context=context,
        kv_type=one_of("--kv-type", cache_type, KV_TYPES),
        threads=threads,
        draft=draft,
        draft_tokens=draft_tokens(depth),
        quant=quant,
        ubatch=ubatch,
        target_tps=target_tps,
        max_loss=max_loss,
    )

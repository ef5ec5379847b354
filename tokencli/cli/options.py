"""The options that commands share, each written once: name, placeholder and help. Checks their form, decides nothing."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tokencli.errors import UsageError

KV_TYPES = ("f16", "q8_0", "q4_0")
MOST_DRAFT_TOKENS = 64


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=True)


def _known_models(incomplete: str) -> list[str]:
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
        autocompletion=_known_models,
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
Context = Annotated[int | None, _option("--context", "N", "Context size in tokens: prompt and answer together.")]
Threads = Annotated[int | None, _option("--threads", "N", "CPU threads. One per physical core if not given.")]
Profile = Annotated[str | None, _option("--profile", "NAME", "The hardware profile. Chosen by the device if not given.")]
Device = Annotated[str | None, _option("--device", "NAME", "The device: cpu, or as llama.cpp calls it (Vulkan0, CUDA0).")]
Machine = Annotated[str | None, _option("--machine", "NAME|FILE", "Plan for another computer: a snapshot or a .json file.")]
Check = Annotated[bool, typer.Option("--check", help="Compare the plan with llama.cpp's own dry run, term by term.")]
Load = Annotated[bool, typer.Option("--load", help="Compare it with a real load and a long prompt instead: reserve and peak.")]
KvType = Annotated[str | None, _option("--kv-type", "TYPE", "The KV cache's element type: f16, q8_0 or q4_0.")]
Draft = Annotated[str | None, _option("--draft", "auto|off|ngram|MODEL", "What guesses the next tokens.")]
DraftTokens = Annotated[str | None, _option("--draft-tokens", "auto|N", "Tokens guessed at once.")]
ShowDraft = Annotated[bool, typer.Option("--show-draft", help="Colour the tokens that the draft had guessed.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but the answer and errors.")]


def check_range(*limits: tuple[str, float | None, float, float]) -> None:
    """Raises UsageError for the first (option, value, least, most) outside its limits."""
    for option, value, least, most in limits:
        if value is not None and not least <= value <= most:
            raise UsageError(f"{option} {value} is out of range", f"give a value from {least:,} to {most:,}")


def kv_type(text: str | None) -> str | None:
    """Raises UsageError for a type that no KV cache can have."""
    if text is not None and text not in KV_TYPES:
        raise UsageError(f"--kv-type {text} is not known", "use " + ", ".join(KV_TYPES))
    return text


def draft_tokens(text: str | None) -> int | None:
    """`--draft-tokens`: a count, or None for "auto". Raises UsageError."""
    if text is None or text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_DRAFT_TOKENS:
        raise UsageError(f"--draft-tokens {text} is out of range", f"use auto, or 1 to {MOST_DRAFT_TOKENS}")
    return int(text)


def gpu_layers(text: str | None) -> int | None:
    """`--gpu-layers`: a count, -1 for "all", None for "decide for me". Raises UsageError."""
    if text is None:
        return None
    if text == "all":
        return -1
    if not text.isdecimal():
        raise UsageError(f"--gpu-layers {text} is neither a number nor all", "use --gpu-layers 0, a count, or all")
    return int(text)

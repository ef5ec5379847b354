"""Which of a repository's models to take: the one asked for, else the first of a fixed order that fits into memory. Pure.

Knows quants by their names; what a plan would make of each, it does not know.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tokencli.errors import BadModelFile, ModelNotFound, ModelUnavailable, UsageError
from tokencli.listing import File, Variant, drafts, engine_of, kind_of, matching, normal, part_of, variants

# Four bits first, as the hub's own tools do; more bits where nothing of four is offered; fewer where that does not fit.
_ORDER = (
    "Q4_K_M", "Q4_K_XL", "Q4_K_L", "MXFP4", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_K", "Q4_1", "Q4_0", "NVFP4",
    "Q5_K_M", "Q5_K_XL", "Q5_K_L", "Q5_K_S", "Q5_K", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_0", "Q8_K_XL",
    "Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M", "IQ3_S", "Q3_K_S", "IQ3_XS", "IQ3_XXS", "Q3_K",
    "Q2_K_XL", "Q2_K_L", "Q2_K", "IQ2_M", "IQ2_S", "Q2_K_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "Q2_0_G64", "Q2_0",
    "TQ1_0", "IQ1_M", "IQ1_S", "Q1_0", "BF16", "F16", "F32",
)  # fmt: skip
_SHOWN = 12
_KINDS = {
    "projector": "a projector for images",
    "draft": "a draft or a head for one",
    "imatrix": "an importance matrix",
    "adapter": "an adapter",
    "vocabulary": "a vocabulary without weights",
    "other": "no GGUF file",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The model taken, and a note where that was our choice."""

    variant: Variant
    note: str | None = None


def choose(files: Sequence[File], wanted: str | None, where: str, memory: int | None) -> Choice:
    """The model of `where` that is asked for. Without a wish: the only one, else by the order above the first of at most
    `memory` bytes; `memory` None means that only an exact wish will do.

    Raises UsageError where several could be meant and for a quant that there is not, ModelNotFound for one that is not offered,
    BadModelFile for what needs another engine.
    """
    offered = variants(files)
    if wanted is not None:
        return Choice(_loadable(_asked_for(files, offered, wanted, where)))
    if not offered:
        raise _nothing(files, where)
    if len(offered) == 1:
        return Choice(_loadable(offered[0]))
    if memory is None:
        raise _ambiguous(offered, where, None)
    return _by_order(offered, where, memory)


def _asked_for(files: Sequence[File], offered: list[Variant], wanted: str, where: str) -> Variant:
    found = _without_copies(matching(offered, wanted) or matching(drafts(files), wanted))
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(found, where, wanted)
    named = [file for file in files if wanted.lower() in (file.path.lower(), file.name.lower())]
    if named:
        raise _no_model(named[0], files, where)
    if not offered:
        raise _nothing(files, where)
    if not (_is_quant(wanted) or wanted.lower().endswith(".gguf")):
        near = ", ".join(difflib.get_close_matches(wanted.upper(), _ORDER, n=3, cutoff=0))
        raise UsageError(f"{wanted} is no quant and no file of {where}", f"near it are {near}; there are: {listed(offered)}")
    near_here = difflib.get_close_matches(wanted.upper(), [each.quant for each in offered if each.quant], n=1)
    hint = f"did you mean {near_here[0]}? " if near_here else ""
    raise ModelNotFound(f"{where} has no {wanted}", f"{hint}there are: {listed(offered)}")


def _is_quant(name: str) -> bool:
    """Whether it is the name of a type that llama.cpp or one of its forks knows, offered here or not."""
    plain = normal(name).removeprefix("UD-")
    return plain in _ORDER or engine_of(f"{plain}.gguf") is not None


def _loadable(variant: Variant) -> Variant:
    """Raises BadModelFile for a file that only another engine can load, before anything of it is downloaded (report A3-15)."""
    if engine := engine_of(variant.path):
        hint = "take another quant, or a model that is made for mainline llama.cpp"
        raise BadModelFile(f"{variant.path} needs {engine}: no mainline llama.cpp can load it", hint)
    return variant


def _by_order(offered: list[Variant], where: str, memory: int) -> Choice:
    loadable = [each for each in offered if not engine_of(each.path)]
    if not loadable:
        _loadable(offered[0])
    ranked = sorted(loadable, key=_rank)
    if _rank(ranked[0])[0] == len(_ORDER):
        raise _ambiguous(offered, where, None)
    fitting = [each for each in ranked if each.bytes <= memory]
    taken = fitting[0] if fitting else min(ranked, key=lambda each: each.bytes)
    if len(same := _without_copies([each for each in ranked if each.quant == taken.quant])) > 1:
        raise _ambiguous(same, where, None)
    why = "the first of the usual order that fits into memory" if fitting else "the smallest, though it may not fit into memory"
    return Choice(taken, f"took {taken.quant} ({size(taken.bytes)}) of {len(offered)} in {where}: {why}; :QUANT takes another")


def _rank(variant: Variant) -> tuple[int, int]:
    quant = variant.quant or ""
    plain = quant.removeprefix("UD-")
    return (_ORDER.index(plain) if plain in _ORDER else len(_ORDER)), int(quant != plain)


def _without_copies(found: list[Variant]) -> list[Variant]:
    """The same content under several names is one model."""
    numbers = count()
    by_content = {tuple(file.sha256 or next(numbers) for file in each.files): each for each in reversed(found)}
    return list(reversed(by_content.values()))


def _ambiguous(found: Sequence[Variant], where: str, wanted: str | None) -> UsageError:
    what = f"{wanted} of {where} can be {len(found)} models" if wanted else f"{where} holds {len(found)} models"
    names = "; ".join(_shown(f"{each.path} ({size(each.bytes)})" for each in found))
    return UsageError(what, f"name one of these files: {names}")


def _nothing(files: Sequence[File], where: str) -> ModelUnavailable:
    parts = [file for file in files if kind_of(file.path) == "bytes"]
    if parts:
        return _no_model(parts[0], files, where)
    if foreign := next((file for file in files if engine_of(file.path)), None):
        return _no_model(foreign, files, where)
    if broken := next((file for file in files if kind_of(file.path) == "model"), None):
        return _no_model(broken, files, where)
    others = [file for file in files if file.path.lower().endswith(".gguf")]
    if others:
        return _no_model(others[0], files, where)
    return ModelNotFound(f"{where} holds no GGUF file", "look for a repository of the model whose name ends in -GGUF")


def _no_model(file: File, files: Sequence[File], where: str) -> ModelUnavailable:
    """Why the file is none that can be run."""
    kind = kind_of(file.path)
    if engine := engine_of(file.path):
        return BadModelFile(f"{file.path} needs {engine}: llama.cpp cannot load it", "take a GGUF of the model")
    if kind == "bytes":  # report A6-08
        hint = "download all pieces, join them in order (cat NAME.part* > NAME), and give the path"
        return BadModelFile(f"{file.path} is one piece of a file that was cut by bytes", hint)
    if kind == "model":
        _, total, _ = part_of(file.path)
        return BadModelFile(f"{where} lacks some of the {total} parts of {file.path}", "take another quant or repository")
    offered = variants(files)
    hint = f"there are: {listed(offered)}" if offered else "take the model's own file"
    return BadModelFile(f"{file.path} is {_KINDS[kind]}, not a model", hint)


def listed(offered: Sequence[Variant]) -> str:
    """What can be asked for, in one line."""
    return ", ".join(_shown(f"{each.quant or each.path} ({size(each.bytes)})" for each in offered))


def _shown(names: Iterator[str]) -> list[str]:
    found = list(names)
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]


def size(count_of_bytes: int) -> str:
    """As hubs and disks are labelled: powers of ten."""
    if count_of_bytes >= 1e9:
        return f"{count_of_bytes / 1e9:.1f} GB"
    return f"{count_of_bytes / 1e6:.0f} MB" if count_of_bytes >= 1e6 else f"{count_of_bytes / 1e3:.0f} kB"

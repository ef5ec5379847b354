"""A repository's files: what each is, which belong together, and which of them a request means. Pure.

Knows names, sizes and hashes as a hub or a folder lists them; knows no network, no disk, and nothing of what is in a file.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["model", "projector", "draft", "imatrix", "adapter", "vocabulary", "bytes", "other"]


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is listed. `sha256` where the hub stores it by its hash (LFS); `oid`: git's name of it otherwise."""

    path: str
    bytes: int
    sha256: str | None = None
    oid: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def etag(self) -> str | None:
        """What the hub calls this content, and the Hugging Face cache its blob."""
        return self.sha256 or self.oid


@dataclass(frozen=True, slots=True)
class Variant:
    """One model that a repository offers: its quant as far as names tell, and its files, the parts of a split one in order."""

    quant: str | None
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def path(self) -> str:
        return self.files[0].path


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub, chosen: `name` as it is asked for (names.py). `paths`: its files on this disk; none: not fetched yet.

    `verified`: size and modification time in nanoseconds of each when its hash was found right; None: not looked at yet.
    """

    name: str
    repo: str
    commit: str
    quant: str | None
    files: tuple[File, ...]
    paths: tuple[str, ...] = ()
    verified: tuple[tuple[int, int] | None, ...] = ()

    @property
    def fetched(self) -> bool:
        return bool(self.paths)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


# A quant's name, where it stands between separators. As written by llama.cpp's quantize and by its forks.
_QUANT = re.compile(
    r"(?<![A-Z0-9])"
    r"((?:UD-)?(?:"
    r"P?T?Q[1-8]_[01](?:_G\d+|_R\d+|_\d_\d)?"
    r"|I?Q[1-8]_(?:KSS|KS|KL|KT|KV|K|XXS|XS|NL|BN|S|M)(?:_(?:XXL|XL|L|M|S|XS|P|H|R\d))?"
    r"|MXFP[46](?:_MOE)?|NVFP4|I2_S|TL[12]|BF16|FP?16|FP?32"
    r"))(?![A-Z0-9])"
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_BYTE_PART = re.compile(r"\.gguf[._-](?:part[._-]?\d+(?:of\d+)?|split[._-]?[a-z]+|[a-z]{1,2}|\d{1,3})$|\.part\d+of\d+$")
_DRAFT = re.compile(r"^(?:mtp|draft|eagle3?|dflash|dspark)[-_.]|[-_.](?:draft(?:er)?|eagle3?|dflash|dspark|nextn)(?=[-_.])")
_ADAPTER = re.compile(r"(?:^|[-_.])(?:lora|adapter)(?=[-_.])")

_ENGINES = (
    (re.compile(r"PT?Q\d_0"), "PrismML's fork of llama.cpp"),
    (re.compile(r"I2_S|TL[12]"), "bitnet.cpp"),
    (re.compile(r"IQ\d_(?:K|KSS?|KL|KT|BN)(?:_R\d)?|I?Q\d_\w+_R\d"), "ik_llama.cpp"),
)


def kind_of(path: str) -> Kind:
    """What a file is by its name. A name that tells nothing else is a model's if it ends in .gguf."""
    name = path.rpartition("/")[2].lower()
    if not name.endswith(".gguf"):
        if _BYTE_PART.search(name):
            return "bytes"
        return "imatrix" if "imatrix" in name else "other"
    if "mmproj" in name:
        return "projector"
    if "imatrix" in name and not quant_of(name):  # some write into the name of a model that it was made with one
        return "imatrix"
    if _ADAPTER.search(name) and "merge" not in name:
        return "adapter"
    if "ggml-vocab" in name or "vocab-only" in name:
        return "vocabulary"
    return "draft" if _DRAFT.search(name) else "model"


def quant_of(path: str) -> str | None:
    """The quant that a path names, in the file's name or in that of a folder, in any case."""
    for piece in reversed(path.upper().split("/")):
        if found := _QUANT.findall(piece):
            return normal(found[-1])
    return None


def normal(quant: str) -> str:
    """One spelling of a quant's name."""
    return quant.strip().upper().replace("FP16", "F16").replace("FP32", "F32").removesuffix("_MOE")


def engine_of(path: str) -> str | None:
    """The engine that a file needs which mainline llama.cpp cannot load; None where the name tells of none."""
    if path.lower().endswith(".ninfer"):
        return "ninfer"
    quant = (quant_of(path) or "").removeprefix("UD-")
    return next((engine for pattern, engine in _ENGINES if pattern.fullmatch(quant)), None)


def variants(files: Sequence[File]) -> list[Variant]:
    """The models among the files, parts of a split one put together; one that lacks a part is left out.

    Where all are made to be drafts, these are the models.
    """
    return _grouped(files, "model") or _grouped(files, "draft")


def drafts(files: Sequence[File]) -> list[Variant]:
    return _grouped(files, "draft")


def _grouped(files: Iterable[File], kind: Kind) -> list[Variant]:
    groups: dict[tuple[str, int], dict[int, File]] = {}
    for file in files:
        if kind_of(file.path) == kind:
            number, count, stem = part_of(file.path)
            groups.setdefault((stem, count), {})[number] = file
    whole: dict[str, tuple[File, ...]] = {}
    for (stem, count), parts in sorted(groups.items(), key=lambda each: (each[0][0], -each[0][1])):
        if len(parts) == count:
            whole[stem] = tuple(parts[number] for number in sorted(parts))  # in fewer parts where there are both
    return [Variant(quant_of(each[0].path), each) for each in whole.values()]


def alike(variant: Variant, offered: Sequence[Variant]) -> list[Variant]:
    """The variant, and what differs from it in the quant alone; of each quant one, and none that needs another engine."""
    found = {variant.quant: variant}
    for each in offered:
        if each.quant and not engine_of(each.path) and _without_quant(each.path) == _without_quant(variant.path):
            found.setdefault(each.quant, each)
    return list(found.values())


def _without_quant(path: str) -> str:
    _, _, whole = part_of(path.upper().rpartition("/")[2].replace(".GGUF", ".gguf"))
    return _QUANT.sub("", whole)


def part_of(path: str) -> tuple[int, int, str]:
    """Which part of how many a file is by its name, and the name that all parts share."""
    found = _PART.search(path)
    if not found:
        return 1, 1, path
    return int(found[1]), int(found[2]), path[: found.start()] + path[found.end() :]


def parts_of(name: str) -> list[str]:
    """The files of a model named by its first, as llama.cpp finds them: by their names, in one folder."""
    number, count, _ = part_of(name)
    ending = f"-{number:05d}-of-{count:05d}.gguf"
    if not name.endswith(ending):
        return [name]
    stem = name.removesuffix(ending)
    return [f"{stem}-{each:05d}-of-{count:05d}.gguf" for each in range(1, count + 1)]


def matching(offered: Sequence[Variant], wanted: str) -> list[Variant]:
    """The variants that a request can mean: by file, by quant, or by the last words of the name (reports A3-03, A3-04)."""
    by_file = [each for each in offered if _is_file(each, wanted)]
    if by_file:
        return by_file
    quant = normal(wanted)
    exact = [each for each in offered if each.quant == quant]
    if mainline := [each for each in offered if each.quant and re.fullmatch(re.escape(quant) + r"_G64", each.quant)]:
        return mainline  # Q2_0 in blocks of 64 is what mainline means by Q2_0 (report A3-07)
    return exact or [each for each in offered if _ends_with(each.path, quant)]


def _is_file(variant: Variant, wanted: str) -> bool:
    names = [name.lower() for file in variant.files for name in (file.path, file.name)]
    return wanted.lower() in names or f"{wanted.lower()}.gguf" in names


def _ends_with(path: str, wanted: str) -> bool:
    """Whether the file's name or that of a folder ends in the words of the request."""
    _, _, whole = part_of(path)
    pieces = re.sub(r"\.gguf$", "", whole, flags=re.IGNORECASE).upper().split("/")
    return any(piece == wanted or re.search(rf"[-_.]{re.escape(wanted)}$", piece) for piece in pieces)

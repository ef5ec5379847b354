"""The ways to name a model of the hub: hf:ORG/REPO[:QUANT] and the addresses that a browser shows. Pure."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tokencli.errors import UsageError

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")

_SHORT = re.compile(r"hf:(?://)?(?P<repo>[^/:@\s]+/[^/:@\s]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<quant>.+))?")
_HOST_FIRST = re.compile(r"(?:www\.)?(?:huggingface\.co|hf\.co)/")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FORM = "write hf:ORG/REPO or hf:ORG/REPO:QUANT, as in hf:Qwen/Qwen3-8B-GGUF:Q4_K_M"
_NOT_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "blog")


@dataclass(frozen=True, slots=True)
class HubName:
    """What is asked for of the hub. `quant`: a quant, a file, or the last words of a file's name; `revision`: None is main."""

    repo: str
    quant: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{revision}" + (f":{self.quant}" if self.quant else "")


def hub_name(text: str, hosts: Collection[str] = HOSTS) -> HubName | None:
    """The model of the hub that `text` names; None where it is no such name. Raises UsageError where it is a wrong one."""
    if "://" in text and not text.startswith("hf:"):
        return _address(text, hosts)
    if _HOST_FIRST.match(text):
        repo, _, quant = text.partition(":")
        found = _address(f"https://{repo}", hosts)
        return HubName(found.repo, quant or found.quant, found.revision)
    if not text.startswith("hf:"):
        return None
    short = _SHORT.fullmatch(text)
    if not short or not _REPO.fullmatch(short["repo"]):
        raise UsageError(f"{text} does not name a model of the hub", _FORM)
    return HubName(short["repo"], short["quant"], short["revision"])


def is_repository(text: str) -> bool:
    """Whether the text has the form ORG/REPO."""
    return _REPO.fullmatch(text) is not None and not text.endswith(".gguf")


def _address(text: str, hosts: Collection[str]) -> HubName:
    """ORG/REPO[:QUANT], and with /blob/, /resolve/ or /tree/ a revision and what comes after it (report A6-09)."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"{text} is not an address", "give the path of a .gguf file, or " + _FORM) from None
    pieces = [unquote(piece) for piece in parts.path.split("/") if piece]
    if parts.scheme not in ("http", "https") or parts.hostname not in hosts:
        raise UsageError(f"{text} is not an address of the hub", "download the .gguf file and give its path, or " + _FORM)
    quant = ""
    if len(pieces) > 1 and ":" in pieces[1]:
        pieces[1], _, quant = "/".join(pieces[1:]).partition(":")
        del pieces[2:]
    if len(pieces) < 2 or pieces[0] in _NOT_MODELS or not _REPO.fullmatch("/".join(pieces[:2])):
        raise UsageError(f"{text} is not the address of a model", _FORM)
    repo = "/".join(pieces[:2])
    if len(pieces) > 3 and pieces[2] in ("blob", "resolve", "raw", "tree"):
        revision = None if pieces[3] == "main" else pieces[3]
        return HubName(repo, "/".join(pieces[4:]) or None, revision)
    return HubName(repo, quant or None)

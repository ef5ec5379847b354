"""The models that can be run as a table, one of them in detail, and both as JSON. Renders, decides nothing."""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from tokencli.app.models import Details, Line
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import rounded
from tokencli.core import ModelInfo
from tokencli.decode.text import EscapeStripper
from tokencli.listing import HubModel
from tokencli.plan.quants import size

_COLUMNS = ("MODEL", "QUANT", "SIZE", "HERE", "FITS", "DECODE", "LICENCE", "FOR")


def show_list(lines: Iterable[Line], terminal: Terminal) -> None:
    rows = [_COLUMNS, *(_row(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    _print(["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows], terminal)


def _row(line: Line) -> tuple[str, ...]:
    return (
        line.name,
        line.quant or "-",
        "?" if line.bytes is None else size(line.bytes),
        _yes(line.here),
        line.placement or _yes(line.fits),
        f"~{rounded(line.decode_tokens_per_second)}/s" if line.decode_tokens_per_second else "?",
        line.license or "-",
        line.for_what or line.title or "-",
    )


def list_json(lines: Iterable[Line]) -> str:
    return json.dumps({"models": [dataclasses.asdict(line) for line in lines]}, ensure_ascii=False)


def show_details(found: Details, terminal: Terminal) -> None:
    info, line, hub = found.model.info, found.line, found.model.hub
    _print(
        [
            f"{line.name}  {info.architecture} {info.quant}, {size(info.file_bytes)}",
            *([line.title] if line.title else []),
            f"file        {_where(found)}",
            *([f"hub         hf:{hub.repo} at {hub.commit[:12]}, {_parts(hub)}"] if hub else []),
            f"verified    {_yes(found.verified)}",
            f"licence     {line.license or '-'}",
            f"layers      {info.layers}" + (f", {info.draft_heads} of them draft heads" if info.draft_heads else ""),
            f"context     {info.context_trained or '?'} trained",
            f"vocabulary  {info.vocabulary.size}",
            f"can         {', '.join(capabilities(info)) or '-'}",
            *([f"draft       {line.draft}"] if line.draft else []),
            *(f"memory      {each.bytes / 2**30:6.2f} GiB at a context of {each.context}" for each in found.memory),
            "            weights, KV cache and state on the CPU; compute buffers come on top: tokencli plan",
        ],
        terminal,
    )


def details_json(found: Details) -> str:
    info = found.model.info
    described: dict[str, Any] = {
        **dataclasses.asdict(found.line),
        "architecture": info.architecture,
        "layers": info.layers,
        "context_trained": info.context_trained,
        "vocabulary": info.vocabulary.size,
        "chat_template": info.chat_template,
        "capabilities": capabilities(info),
        "memory": [dataclasses.asdict(each) for each in found.memory],
        "verified": found.verified,
        "hub": _hub_json(found.model.hub),
    }
    return json.dumps(described, ensure_ascii=False)


def capabilities(info: ModelInfo) -> list[str]:
    """What the header says that the model can do, or is."""
    template = info.chat_template or ""
    told = {
        "chat": bool(template),
        "tools": "tools" in template,
        "reasoning": "think" in template or "reasoning" in template,
        f"{info.experts_used} of {info.experts} experts": info.experts > 0,
        f"sliding window of {info.sliding_window}": info.sliding_window is not None,
        "recurrent state": info.is_recurrent,
        "built-in draft": info.has_draft_heads and info.draft_heads > 0,
    }
    return [name for name, is_so in told.items() if is_so]


def model_json(model: HubModel) -> str:
    return json.dumps(_hub_json(model), ensure_ascii=False)


def _hub_json(model: HubModel | None) -> dict[str, Any] | None:
    if not model:
        return None
    files = [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in model.files]
    fields = {"name": model.name, "repo": model.repo, "commit": model.commit, "quant": model.quant, "bytes": model.bytes}
    return {**fields, "files": files, "paths": list(model.paths)}


def _where(found: Details) -> str:
    return found.line.file or "not downloaded"


def _parts(hub: HubModel) -> str:
    return hub.files[0].path + (f" and {len(hub.files) - 1} more parts" if len(hub.files) > 1 else "")


def _yes(value: bool | None) -> str:
    return "?" if value is None else "yes" if value else "no"


def _print(lines: Iterable[str], terminal: Terminal) -> None:
    for line in lines:
        terminal.stdout.write(EscapeStripper().feed(line) + "\n")  # names may hold anything
    terminal.stdout.flush()

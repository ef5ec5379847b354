"""What `scripts/bench quality` measures: what quants and KV types lose, by our command and by llama.cpp's own tool.

Both read the same text in the same chunks; theirs keeps the reference's log-probabilities in 16 bits and leaves the least out.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from llama_tools import PERPLEXITY, tool
from make_models import quants

from tokencli.world import catalogue

TEXT = catalogue.data_folder() / "texts" / "winter-animals.txt"
_COLUMNS = (
    *("what", "mean KL divergence", "theirs", "ours / theirs", "99th percentile", "theirs"),
    *("same top %", "theirs", "perplexity", "theirs"),
)
_FIGURES = {
    "kl_divergence_mean": r"Mean    KLD:\s+(-?[\d.]+)",
    "kl_divergence_p99": r"99\.0%   KLD:\s+(-?[\d.]+)",
    "same_top": r"Same top p:\s+([\d.]+)",
    "perplexity": r"Mean PPL\(Q\)\s+:\s+([\d.]+)",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One file against the F16, with a KV cache of a type; the F16 itself must lose nothing."""

    file: Path
    kv_type: str = "f16"

    def __str__(self) -> str:
        return f"{self.file.stem.removeprefix('smollm2-').upper()}, KV {self.kv_type}"


def quality(
    threads: Annotated[int, typer.Option(help="Threads for both programs.")] = 2,
    text: Annotated[Path, typer.Option(help="The text to read.")] = TEXT,
    chunk: Annotated[int, typer.Option(help="Tokens of a chunk.")] = 512,
) -> None:
    """Mean KL divergence, its 99th percentile, same most probable token and perplexity, ours beside llama-perplexity's."""
    made, program = quants(), tool(PERPLEXITY)
    cases = [Case(made.f16), Case(made.q8_0), Case(made.q4_1), Case(made.f16, "q8_0"), Case(made.f16, "q4_0")]
    print(f"| {' | '.join(_COLUMNS)} |")
    print("|---" * len(_COLUMNS) + "|")
    with tempfile.TemporaryDirectory() as folder:
        base, settings = Path(folder) / "base", {"XDG_CONFIG_HOME": folder}  # what is measured here is not for plans
        common = ["-f", str(text), "-c", str(chunk), "-t", str(threads), "--kl-divergence-base", str(base)]
        _said([str(program), "-m", str(made.f16), *common])
        for case in cases:
            kv = ["-ctk", case.kv_type, "-ctv", case.kv_type]
            theirs = parsed(_said([str(program), "-m", str(case.file), *common, *kv, "--kl-divergence"]))
            print(_row(case, _ours(case, made.f16, threads, text, chunk, settings), theirs), flush=True)


def parsed(said: str) -> dict[str, float]:
    """Figures from what llama-perplexity prints."""
    found = {name: re.search(pattern, said) for name, pattern in _FIGURES.items()}
    missing = [name for name, match in found.items() if not match]
    if missing:
        raise ValueError(f"llama-perplexity told no {missing[0]}: {said[-500:]}")
    return {name: float(match[1]) for name, match in found.items() if match}


def _ours(case: Case, reference: Path, threads: int, text: Path, chunk: int, settings: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tokencli", "bench", str(case.file), "--quality", "--against", str(reference), "--json"]
    options = ["--kv-type", case.kv_type, "--threads", str(threads), "--text", str(text), "--context", str(chunk)]
    said = _said([*command, *options, "--device", "cpu"], settings)
    found: dict[str, Any] = json.loads(said)["quality"]
    return found


def _said(command: list[str], settings: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(settings or {})}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def _row(case: Case, ours: dict[str, Any], theirs: dict[str, float]) -> str:
    def with_interval(name: str, digits: int, times: float = 1) -> str:
        value, low, high = (times * ours[name][key] for key in ("value", "low", "high"))
        return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    mean, their_mean = ours["kl_divergence_mean"]["value"], theirs["kl_divergence_mean"]
    ratio = f"{mean / their_mean:.3f}" if their_mean > 1e-6 else "-"
    cells: Iterator[str] = iter(
        (
            str(case),
            with_interval("kl_divergence_mean", 5),
            f"{their_mean:.5f}",
            ratio,
            with_interval("kl_divergence_p99", 4),
            f"{theirs['kl_divergence_p99']:.4f}",
            with_interval("same_top", 1, 100),
            f"{theirs['same_top']:.1f}",
            with_interval("perplexity", 2),
            f"{theirs['perplexity']:.2f}",
        )
    )
    return f"| {' | '.join(cells)} |"

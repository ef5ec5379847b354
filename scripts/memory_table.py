"""Writes docs/memory.md: every term of memory of 18 well-known shapes at all splits, predicted and by llama.cpp's own account.

    .venv/bin/python scripts/memory_table.py

Takes about a minute on two cores. Needs Mesa's lavapipe for the rows with a device; without it only the CPU's are written.
Ends with 1 if any term is off by more than 1 MiB.
"""

import argparse
import importlib.metadata
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import zoo_cases  # noqa: E402
from tests.conftest import LAVAPIPE  # noqa: E402
from tests.zoo_cases import TERMS, VULKAN, Bytes  # noqa: E402
from tests.zoo_measure import Case  # noqa: E402
from tests.zoo_models import MODELS  # noqa: E402
from tokencli.engine.client import Engine  # noqa: E402

MIB = 1 << 20
COLUMNS = [(term, "CPU") for term in TERMS] + [(term, VULKAN) for term in TERMS if term != "output"]

HEAD = """\
# Memory, term by term

What `tokencli plan` says of weights, KV cache, recurrent state and output, against llama.cpp's own figures for the same settings.
Made by `scripts/memory_table.py` in {seconds:.0f} s on {machine} with llama-cpp-python {version}: {count} rows, largest
difference of any term **{worst:.3f} MiB**.

The models are headers made of public hyperparameters with a plausible quant (tests/zoo_models.py), not the real files: no weights
were downloaded. llama.cpp is asked with `no_alloc` and reports what it would allocate (tests/zoo_measure.py).

- Formulas and their sources: tokencli/plan/memory.py. Compute buffers have none: llama.cpp's dry run is asked each time.
- Each cell is predicted / llama.cpp's, in MiB; one number where the two agree to two digits. `Vulkan0` is Mesa's lavapipe, whose
  buffers hold 128 MiB: a larger matrix, or one whose result for 512 tokens would be larger, stays on the host there
  (`memory.seen_by`; the worker asks the device for its limit). Most real GPUs hold 4 GiB and take them. Mamba's first scan has no
  Vulkan kernel: its small matrices stay too, which this table counts and a plan does not (20 MiB of a 2.8B).
- What a driver takes outside of these buffers is no term: nothing here tells it. A profile's `headroom_share` leaves room.
- In a dry run nothing is mapped. With mmap, llama.cpp logs for the host the range of the file from the first of its tensors to
  the last (`memory.mapped_bytes`, checked by real loads in tests/engine/test_zoo.py).
- `output` is one row of logits, as reserved; it grows to one more for each drafted token (`memory.placed` counts them all).
- KV: type, `-` without flash attention; a quantised cache without it is refused. `+2`: two earlier states are kept.
"""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*", default=list(MODELS), help="only these")
    arguments.add_argument("--output", type=Path, default=ROOT / "docs" / "memory.md")
    given = arguments.parse_args()
    start = time.perf_counter()
    cases = zoo_cases.cases(given.models, _device())
    with tempfile.TemporaryDirectory() as folder:
        found = zoo_cases.measured(cases, Path(folder))
    text, worst = _document(cases, found, time.perf_counter() - start)
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text(text, "utf-8")
    print(f"{given.output}: {len(cases)} rows, largest difference {worst:.3f} MiB", file=sys.stderr)
    return int(worst > 1)


def _device() -> str | None:
    with Engine(environment=LAVAPIPE) as engine:
        return next((device.id for device in engine.devices() if device.id == VULKAN), None)


def _document(cases: dict[str, tuple[str, Case]], found: dict[str, Bytes | str], seconds: float) -> tuple[str, float]:
    worst, lines, current = 0.0, [], None
    for key, (name, case) in cases.items():
        if name != current:
            lines += ["", *_title(name)]
            current = name
        row, difference = _row(name, case, found[key])
        lines.append(row)
        worst = max(worst, difference)
    head = HEAD.format(
        seconds=seconds,
        machine=f"{platform.machine()}, two cores",
        version=importlib.metadata.version("llama-cpp-python"),
        count=len(cases),
        worst=worst,
    )
    return head + "\n".join(lines) + "\n", worst


def _title(name: str) -> list[str]:
    info = zoo_cases.info(name)
    return [
        f"## {name}, {info.quant}: {info.layers} blocks, {info.file_bytes / 2**30:.2f} GiB",
        "",
        "| on Vulkan0 | context | KV | ubatch | " + " | ".join(f"{place} {term}" for term, place in COLUMNS) + " | difference |",
        "|---|---|---|---|" + "---|" * (len(COLUMNS) + 1),
    ]


def _row(name: str, case: Case, theirs: Bytes | str) -> tuple[str, float]:
    """The row, and the largest difference in it in MiB."""
    if isinstance(theirs, str):
        raise SystemExit(f"llama.cpp refuses {name} with {case}: {theirs}")
    ours = zoo_cases.predicted(name, case)
    pairs = [(ours.get(column, 0) / MIB, theirs.get(column, 0) / MIB) for column in COLUMNS]
    difference = max(abs(our - their) for our, their in pairs)
    where = "no GPU" if case.device is None else f"{case.gpu_layers} layers"
    where += f", experts of {case.cpu_moe_layers} on the CPU" if case.cpu_moe_layers else ""
    kv = case.kv_type + ("-" if case.flash_attention == "off" else "")
    ubatch = f"{case.ubatch}" + (f" +{case.snapshots}" if case.snapshots else "")
    cells = " | ".join(_cell(our, their) for our, their in pairs)
    return f"| {where} | {case.context} | {kv} | {ubatch} | {cells} | {difference:.3f} |", difference


def _cell(ours: float, theirs: float) -> str:
    return f"{ours:.2f}" if f"{ours:.2f}" == f"{theirs:.2f}" else f"{ours:.2f} / {theirs:.2f}"


if __name__ == "__main__":
    sys.exit(main())

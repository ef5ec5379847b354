"""Published speeds (tests/field/speeds-*.csv) as plans on machines, and what plan/speed.py says of each.

Knows which models have a shape and which devices a data sheet here; a row without either has no prediction, and says why.
"""

import csv
import dataclasses
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.speed_models import SPEED_MODELS, info
from tokencli.core import Device, Machine, Model, ModelInfo, Plan, Speeds
from tokencli.plan.speed import pass_seconds, prefill_seconds

FIELD = Path(__file__).parent / "field"
_GIGA, _TERA = 1e9, 1e12
_MIXES = ("Q4_K_M", "Q4_0", "Q6_K", "Q8_0", "BF16", "Q1_0", "Q2_0")  # that tests/zoo.py can make
_BANDWIDTH = {"RTX 3060": 360.0}  # GB/s, data sheet
# Rows that do not name their memory. Two channels of DDR5-5600, as in the other rows with this chip.
_ASSUMED_RAM = {"AMD Ryzen 7 7840HS": 89.6, "Radeon 780M": 89.6}


@dataclass(frozen=True)
class Row:
    """A published speed: tokens/s, None where it was not measured."""

    id: str
    device: str
    model: str
    info: ModelInfo
    plan: Plan
    machine: Machine
    depth: int
    decode: float | None
    prefill: float | None = None
    prompt: int = 512


def checked() -> list[Row]:
    """The rows that a prediction is held to: all of speeds-check.csv."""
    return [_row(each) for each in _read("speeds-check.csv")]


def more() -> list[Row]:
    """Rows of speeds.md that the priors of low-bit quants and of prefill were taken from."""
    return [_row({"gpu_layers": "all", "experts_on_cpu_layers": "0", "cpu_memory_gb_per_s": "", **each})
            for each in _read("speeds-more.csv")]  # fmt: skip


def users() -> tuple[list[Row], dict[str, int]]:
    """Users' rows that can be predicted, and how many cannot for which reason."""
    rows, left_out = [], dict[str, int]()
    for number, each in enumerate(_read("speeds-users.csv"), 2):
        why = _why_not(each)
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            rows.append(_users_row(f"line {number}", each))
    return rows, left_out


def decode(row: Row, speeds: Speeds) -> float | None:
    seconds = pass_seconds(row.plan, row.info, row.machine, speeds, depth=row.depth)
    return 1 / seconds if seconds else None


def prefill(row: Row, speeds: Speeds) -> float | None:
    seconds = prefill_seconds(row.plan, row.info, row.machine, speeds, row.prompt)
    return row.prompt / seconds if seconds else None


def errors(rows: Iterable[Row], speeds: Speeds) -> list[float]:
    """Of decode: predicted / measured - 1."""
    return [predicted / row.decode - 1 for row in rows if row.decode and (predicted := decode(row, speeds))]


def percentile(values: Iterable[float], share: float) -> float:
    """Of the absolute values, between the two nearest of them."""
    ordered = sorted(map(abs, values))
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@functools.cache
def _kinds() -> dict[str, tuple[Any, float]]:
    return {each["device"]: (each["kind"], float(each["f32_tera_per_s"])) for each in _read("speeds-devices.csv")}


def _read(name: str) -> list[dict[str, str]]:
    with (FIELD / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _row(each: dict[str, str]) -> Row:
    depth = int(each["depth"])
    quant = each["quant"]
    model = info(_shape(each["model"]) or "", quant)
    if each["row"] == "B-xe1-d":  # llama-bench keeps whole caches also where a window slides (swa_full is llama.cpp's default)
        model = dataclasses.replace(model, sliding_window=None)
    layers = model.offloadable_layers if each["gpu_layers"] == "all" else int(each["gpu_layers"])
    machine = _machine(each["device"], each["backend"], float(each["memory_gb_per_s"]), each["cpu_memory_gb_per_s"])
    return Row(
        each["row"], each["device"], f"{each['model']} {quant}", model,
        _plan(model, each["backend"], layers, int(each["experts_on_cpu_layers"])), machine, depth,
        _number(each["decode_tokens_per_s"]), _number(each.get("prefill_tokens_per_s")),
    )  # fmt: skip


def _plan(model: ModelInfo, backend: str, layers: int, experts: int = 0) -> Plan:
    described = Model("", "", model.quant, model.architecture, model.file_bytes, model.layers, None)
    device = None if backend == "cpu" else "GPU0"
    return Plan(described, backend, layers if device else 0, 1 << 17, 1, device=device, cpu_moe_layers=experts)


def _machine(device: str, backend: str, bandwidth: float, ram: str = "") -> Machine:
    kind, tera = _kinds()[device]
    host = float(ram) * _GIGA if ram else None
    if backend == "cpu":
        devices = [Device("CPU", "cpu", device, 0, 0, None, bandwidth * _GIGA, tera * _TERA)]
    else:
        devices = [
            Device("CPU", "cpu", "", 0, 0, None, host),
            Device("GPU0", kind, device, 0, 0, None, bandwidth * _GIGA, tera * _TERA),
        ]
    return Machine(1, 0, 0, tuple(devices))


def _users_row(name: str, each: dict[str, str]) -> Row:
    model = info(_shape(each["model"]) or "", each["quant"])
    device = _users_device(each)
    machine = _machine(device, each["backend"], _BANDWIDTH.get(device) or _ASSUMED_RAM[device])
    prompt, out = int(each["prompt"]), int(each["out"])
    apart = int(each["ctx"]) == prompt + out  # as llama-bench measures: the answer behind an empty cache
    plan = dataclasses.replace(_plan(model, each["backend"], model.offloadable_layers), kv_type=each["kv"] or "f16")
    return Row(
        name, device, f"{each['model'].split('/')[1]} {each['quant']}", model, plan, machine, out // 2 + (0 if apart else prompt),
        _number(each["decode"]), _number(each["prefill"]), prompt or 512,
    )  # fmt: skip


def _why_not(each: dict[str, str]) -> str | None:
    device, layers = _users_device(each), _number(each["ngl"])
    if device not in _BANDWIDTH and device not in _ASSUMED_RAM:
        return "bandwidth or backend not known here"
    if each["backend"] not in ("cpu", "cuda", "vulkan"):
        return "backend not stated"
    if each["backend"] == "cpu" and each["batch"] != "1":
        return "several sequences at once"
    if _shape(each["model"]) is None:
        return "no shape of the model here"
    if each["quant"] not in _MIXES:
        return "mix of the quant not public"
    if each["backend"] != "cpu" and layers and layers < info(_shape(each["model"]) or "", each["quant"]).layers:
        return "a split whose RAM is not stated"
    return None


def _users_device(each: dict[str, str]) -> str:
    if each["gpu"]:
        return each["gpu"]
    return "Radeon 780M" if "780M" in each["cpu"] else each["cpu"]


def _shape(model: str) -> str | None:
    """The key of SPEED_MODELS for a model's name."""
    name = model.rpartition("/")[2].replace("LFM2.5", "LFM2").replace("Ternary-", "")
    name = re.sub(r"(-reasoning|-Instruct|-it|-GGUF|-\d{4})+$", "", name)
    return name if name in SPEED_MODELS else None


def _number(text: str | None) -> float | None:
    return float(text) if text else None

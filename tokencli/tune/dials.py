"""Which settings are worth trying for a plan on a machine, and what a choice of them means to the planner. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokencli.core import Machine, Plan
from tokencli.tune.search import Choice, Dial, Value

OFF = "off"
DEFAULT = "default"  # of an environment variable: as it is
AS_THREADS = 0  # of batch_threads
_UBATCHES = (128, 256, 512)
_DEPTHS = {"ngram": (4, 8), "model": (2, 4, 8)}
DEEPEST = 8
# Waiting threads that sleep leave the cores to other programs (FACTS: 90 tokens/s for 33 to 50 on a busy machine, a third on an
# idle one). Switches of ggml-vulkan: drivers differ in how well they do what these leave out.
_FOR_CPU = {"OMP_WAIT_POLICY": "passive"}
_FOR_VULKAN = {"GGML_VK_DISABLE_COOPMAT": "1", "GGML_VK_PREFER_HOST_MEMORY": "1"}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be tried: not what was asked for by a flag, and nothing that changes answers unless `loss`.

    `drafts`: kinds of drafts, of "ngram" and "model".
    """

    fixed: frozenset[str]
    drafts: tuple[str, ...] = ("ngram",)
    devices: tuple[str, ...] = ()
    loss: bool = False


@dataclass(frozen=True, slots=True)
class Meaning:
    """A choice as the planner and the worker take it; `draft` "model" stands for the draft model that was asked for."""

    device: str
    settings: dict[str, Any]
    environment: dict[str, str]


def dials(plan: Plan, machine: Machine, allowed: Allowed) -> tuple[tuple[Dial, ...], Choice]:
    """The dials, those that matter most first, and the plan as a choice of their values."""
    found = [dial for dial in _every(plan, machine, allowed) if dial.name not in allowed.fixed and len(dial.values) > 1]
    start = Choice()
    for dial in found:
        start = start.put(dial.name, _as_planned(plan, dial.name))
    return tuple(found), start


def meaning(choice: Choice, start: Choice, device: str) -> Meaning:
    """What differs from the start, as settings and variables of the environment; `device` where no dial says another."""
    changed = choice.beside(start)
    place = str(changed.pop("device", dict(start.values).get("device", device)))
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    for name, value in changed.items():
        if name.isupper():
            environment |= {} if value == DEFAULT else {name: str(value)}
        elif name == "draft":
            kind, _, depth = str(value).partition(":")
            settings |= {"draft": kind, **({"draft_tokens": int(depth)} if depth else {})}
        elif name != "batch_threads" or value != AS_THREADS:
            settings[name] = value
    return Meaning(place, settings, environment)


def _every(plan: Plan, machine: Machine, allowed: Allowed) -> Iterator[Dial]:
    yield Dial("device", _with(_as_planned(plan, "device"), allowed.devices), apart=True)
    if plan.gpu_layers < plan.model.offloadable_layers:  # less than fits: it may be the slower side that gets more
        yield Dial("gpu_layers", _with(plan.gpu_layers, (3 * plan.gpu_layers // 4, plan.gpu_layers // 2)[: plan.gpu_layers // 4]))
    if plan.cpu_moe_layers:
        more = plan.cpu_moe_layers + max(plan.model.layers // 8, 1)
        yield Dial("cpu_moe", _with(plan.cpu_moe_layers, (min(more, plan.model.layers),)))
    yield Dial("threads", _with(plan.threads, _counts(machine.cores)))
    drafts = [f"{kind}:{depth}" for kind in allowed.drafts for depth in _DEPTHS[kind]]
    yield Dial("draft", _with(_as_planned(plan, "draft"), (OFF, *drafts) if drafts else ()))
    for name, value in (_FOR_VULKAN if plan.backend == "vulkan" else {}).items():
        yield Dial(name, (DEFAULT, value))
    for name, value in _FOR_CPU.items():
        yield Dial(name, (DEFAULT, value))
    if plan.extra_buffers:
        yield Dial("extra_buffers", (True, False))
    if plan.kv_type == "f16":  # a quantised cache needs it
        yield Dial("flash_attention", _with(plan.flash_attention, ("on", "off")))
    yield Dial("ubatch", _with(plan.ubatch, tuple(each for each in _UBATCHES if each <= min(plan.batch, plan.context))))
    yield Dial("batch_threads", (AS_THREADS, *_counts(machine.cores)))
    if 2 * plan.model.bytes < machine.ram_available_bytes:  # read whole into memory, two workers hold it beside each other
        yield Dial("load_mode", _with(plan.load_mode, ("mmap",) if plan.load_mode == "none" else ("none",)))
    if allowed.loss and plan.flash_attention != "off":
        yield Dial("kv_type", _with(plan.kv_type, ("f16", "q8_0")))


def _as_planned(plan: Plan, name: str) -> Value:
    if name.isupper():
        return DEFAULT
    if name == "draft":
        return f"{plan.draft.kind}:{plan.draft.max_tokens}" if plan.draft else OFF
    if name == "device":
        return plan.device or "CPU"
    if name == "cpu_moe":
        return plan.cpu_moe_layers
    if name == "batch_threads":
        return plan.batch_threads or AS_THREADS
    value: Value = getattr(plan, name)
    return value


def _counts(cores: int) -> tuple[int, ...]:
    """All cores, half of them, and so on: more threads than cores never pay (report A7-08)."""
    counts = [cores]
    while counts[-1] > 1 and len(counts) < 4:
        counts.append(counts[-1] // 2)
    return tuple(counts)


def _with(planned: Value, others: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys((planned, *others)))

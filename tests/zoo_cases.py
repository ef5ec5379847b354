"""Ways to open the zoo's models, what plan/memory.py says of each, and llama.cpp's own figures to hold against it.

`cases` names them, `predicted` is ours, `measured` asks llama.cpp in one subprocess (zoo_measure.py). On lavapipe tensors
stay on the host that most GPUs would take (memory.seen_by).
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests import zoo
from tests.zoo_measure import Case
from tokencli.core import Draft, Model, ModelInfo, Plan
from tokencli.plan import memory
from tokencli.plan.model_info import model_info
from tokencli.world.ghost import Ghosts, Part

VULKAN = "Vulkan0"
ENVIRONMENT = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_NO_BACKTRACE": "1"}
TERMS = ("weights", "kv", "recurrent", "output")
Bytes = dict[tuple[str, str], float]  # by term and place: CPU, or the device

LAVAPIPE_BUFFER = 128 << 20  # its maxStorageBufferRange


@functools.cache
def info(name: str) -> ModelInfo:
    return model_info(zoo.parsed(name))


def splits(name: str, device: str | None) -> Iterator[tuple[str | None, int, int]]:
    """(device, layers on it, blocks whose experts stay on the host)."""
    yield None, 0, 0
    if device is None:
        return
    layers, experts = info(name).layers, bool(info(name).experts)
    yield device, 0, 0
    yield device, 1, 0
    yield device, layers // 3, 0
    yield device, layers + 1, 0
    if experts:
        yield device, layers + 1, layers // 2
        yield device, layers // 2, layers


def cases(names: Iterable[str], device: str | None, contexts: tuple[int, int] = (4096, 20_000)) -> dict[str, tuple[str, Case]]:
    """Every model at two contexts, KV types and micro-batches, and at all of its splits. By a readable id."""
    found = {}
    for name in names:
        kept = 2 if info(name).recurrent_bytes and any(info(name).recurrent_layers) else 0
        for place, layers, moe in splits(name, device):
            for context, kv_type, ubatch in ((c, k, u) for c in contexts for k in ("f16", "q8_0") for u in (512, 128)):
                rollback = kept if ubatch == 128 else 0
                case = Case("", context, place, layers, moe, kv_type, ubatch, rows=1 + rollback, snapshots=rollback)
                found[_id(name, case)] = name, case
            case = Case("", contexts[0], place, layers, moe, flash_attention="off")
            found[_id(name, case)] = name, case
    return found


def a_few(every: dict[str, tuple[str, Case]]) -> dict[str, tuple[str, Case]]:
    """About a third of them: the settings take turns, so that each meets each split and each model."""
    return {key: each for number, (key, each) in enumerate(every.items()) if number % 3 == (number // 27) % 3}


def _id(name: str, case: Case) -> str:
    where = f"{case.device}:{case.gpu_layers}" if case.device else "CPU"
    where += f" moe {case.cpu_moe_layers}" if case.cpu_moe_layers else ""
    flash = " no-fa" if case.flash_attention == "off" else ""
    return f"{name} {where} {case.context} {case.kv_type} ub{case.ubatch} rs{case.snapshots}{flash}"


def plan(name: str, case: Case) -> Plan:
    model = Model(name, "", info(name).quant, info(name).architecture, 0, info(name).layers, None)
    return Plan(
        model=model,
        backend="vulkan" if case.device else "cpu",
        device=case.device,
        gpu_layers=case.gpu_layers,
        cpu_moe_layers=case.cpu_moe_layers,
        context=case.context,
        threads=1,
        kv_type=case.kv_type,
        ubatch=case.ubatch,
        flash_attention=case.flash_attention,  # type: ignore[arg-type]
        draft=Draft("ngram", None, None, case.snapshots, 0.0) if case.snapshots else None,
    )


def predicted(name: str, case: Case) -> Bytes:
    """By memory.placed without mmap, as a dry run maps nothing; but the output as it is reserved, for one row."""
    on_device = case.device and case.gpu_layers
    seen = memory.seen_by(info(name), LAVAPIPE_BUFFER if on_device else None)
    places = memory.placed(plan(name, case), seen, mapped=False)
    sizes = {(term, place.id): float(getattr(place, term)) for place in places for term in TERMS}
    sizes["output", memory.HOST] = memory.output_bytes(info(name), 1)
    if case.device and on_device:
        sizes["weights", case.device] -= _without_kernel(name, case)
        sizes["weights", memory.HOST] += _without_kernel(name, case) + _copied_before(info(name))
    return sizes


def _without_kernel(name: str, case: Case) -> int:
    """Bytes of the device's tensors that only Mamba's first scan uses, which llama.cpp's Vulkan backend does not have."""
    if info(name).architecture != "mamba":
        return 0
    first = memory.first_gpu_block(info(name).layers, case.gpu_layers)
    scans = [tensor for tensor in zoo.parsed(name).tensors if tensor.name.endswith("ssm_a")]
    return sum(tensor.bytes for tensor in scans if int(tensor.name.split(".")[1]) >= first)


def _copied_before(model: ModelInfo) -> int:
    """A copy of the embeddings that comes before them is a second one on the host, too, where nothing is mapped."""
    copies = [each for each in memory.refused(model, LAVAPIPE_BUFFER) if each.block is None and each.name == "token_embd.weight"]
    return sum(each.bytes for each in copies) if model.architecture in memory.COPIED_BEFORE else 0


def measured(wanted: dict[str, tuple[str, Case]], folder: Path, timeout: float = 300) -> dict[str, Bytes | str]:
    """llama.cpp's figures for each case, or its error."""
    with Ghosts(folder) as ghosts:
        files = {name: str(ghosts.of(name, [zoo.header(name)])) for name, _ in wanted.values()}
        answers = ask([dataclasses.replace(case, file=files[name]) for name, case in wanted.values()], timeout)
    return dict(zip(wanted, answers, strict=True))


def measured_file(part: Part, case: Case, folder: Path) -> Bytes | str:
    """llama.cpp's figures for a model that is not in the zoo."""
    with Ghosts(folder) as ghosts:
        return ask([dataclasses.replace(case, file=str(ghosts.of("one", [part])))])[0]


def ask(several: Iterable[Case], timeout: float = 300) -> list[Bytes | str]:
    """In one process for all: its start costs more than forty cases."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.zoo_measure"],
        input="".join(json.dumps(dataclasses.asdict(case)) + "\n" for case in several),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | ENVIRONMENT,
        timeout=timeout,
        check=True,
    )
    return [_by_place(json.loads(line)) for line in done.stdout.splitlines()]


def _by_place(answer: dict[str, dict[str, float]]) -> Bytes | str:
    if "error" in answer:
        return str(answer["error"])
    sizes: Bytes = {}
    for term in (*TERMS, "compute"):
        for place, size in answer[term].items():
            key = term, VULKAN if place == VULKAN else memory.HOST
            sizes[key] = sizes.get(key, 0.0) + size
    sizes["repacked", memory.HOST] = answer["weights"].get("CPU_REPACK", 0.0)
    return sizes

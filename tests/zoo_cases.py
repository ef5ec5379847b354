"""Ways to open the zoo's models, what plan/memory.py says of each, and llama.cpp's own figures to hold against it.

`cases` names them, `predicted` is ours, `measured` asks llama.cpp in one subprocess (zoo_measure.py). On lavapipe a few
tensors stay on the host that a GPU would take: `refused_by_lavapipe` tells them by llama.cpp's own rule.
"""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests import zoo
from tests.zoo_measure import Case
from tokencli.core import Draft, Model, ModelInfo, Plan
from tokencli.header import Tensor
from tokencli.plan import memory
from tokencli.plan.model_info import model_info
from tokencli.world.ghost import Ghosts, Part

VULKAN = "Vulkan0"
ENVIRONMENT = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_NO_BACKTRACE": "1"}
TERMS = ("weights", "kv", "recurrent", "output")
Bytes = dict[tuple[str, str], float]  # by term and place: CPU, or the device

_LAVAPIPE_BUFFER = 128 << 20  # its maxStorageBufferRange
_PROBED = 512  # tokens that weight_buft_supported in llama-model-loader.cpp tries an operation with


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
    """By memory.placed without mmap, as a dry run maps nothing; but the output as it is reserved, for one row, and what lavapipe
    refuses moved to the host.
    """
    places = memory.placed(plan(name, case), info(name), mapped=False)
    sizes = {(term, place.id): float(getattr(place, term)) for place in places for term in TERMS}
    sizes["output", memory.HOST] = memory.output_bytes(info(name), 1)
    if case.device:
        refused, twice = refused_by_lavapipe(name, case)
        sizes["weights", case.device] -= refused
        sizes["weights", memory.HOST] += refused - twice
    return sizes


def refused_by_lavapipe(name: str, case: Case) -> tuple[int, int]:
    """Bytes of the device's tensors that stay on the host: too large for it, or of an operation that Vulkan does not have.

    The copy of a tied model's embeddings is not made then: the second number.
    """
    first, tied = memory.first_gpu_block(info(name).layers, case.gpu_layers), 0
    refused = 0
    for tensor in zoo.parsed(name).tensors:
        block = tensor.name.split(".")[1] if tensor.name.startswith("blk.") else ""
        output = tensor.name in ("output.weight", *(["token_embd.weight"] if info(name).tied else [])) and case.gpu_layers
        expert = "_exps" in tensor.name and int(block) < case.cpu_moe_layers
        placed = output or (block and first <= int(block) < info(name).trunk_layers and not expert)
        placed = placed or (not block and "altup" in tensor.name and case.gpu_layers)
        placed = placed or (tensor.name.startswith("per_layer_model_proj") and first == 0)
        if placed and _refused(tensor, info(name)):
            refused += tensor.bytes
            once = tensor.name == "token_embd.weight" and info(name).architecture not in memory.COPIED_BEFORE
            tied += tensor.bytes if once else 0
    return refused, tied


def _refused(tensor: Tensor, model: ModelInfo) -> bool:
    """weight_buft_supported, with ggml_backend_vk_device_supports_op: neither the tensor nor the result of a trial fits."""
    if len(tensor.shape) == 1:
        return False
    if tensor.name.endswith("ssm_a"):
        return model.architecture == "mamba"
    used = model.experts_used if "_exps" in tensor.name else math.prod(tensor.shape[2:])
    return max(tensor.bytes, 4 * tensor.shape[1] * _PROBED * used) > _LAVAPIPE_BUFFER and not tensor.name.endswith("bias")


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

"""Every term of memory, closed form against llama.cpp's own figures: 18 well-known shapes, all splits, on the CPU and lavapipe.

A third of the cases of docs/memory.md, which scripts/memory_table.py makes of all. The real loads are of models that are small.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import zoo, zoo_cases, zoo_shapes
from tests.zoo_cases import VULKAN, Bytes
from tests.zoo_measure import Case
from tests.zoo_models import MODELS, ZooModel
from tokencli.core import Model
from tokencli.plan import memory
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header, read_header

MIB = 1 << 20
EXACT = 1.0  # MiB; what remains is padding between tensors and the two digits of a log line

Measured = dict[str, Bytes | str]


def differences(key: str, theirs: Bytes | str, name: str, case: Case) -> list[str]:
    """One line for each term that is not exact, or for a refusal."""
    if isinstance(theirs, str):
        return [f"{key}: {theirs.strip()}"]
    ours = zoo_cases.predicted(name, case)
    pairs = {
        (term, place): (ours.get((term, place), 0) / MIB, theirs.get((term, place), 0) / MIB)
        for term, place in sorted(ours.keys() | theirs.keys())
        if term in zoo_cases.TERMS
    }
    return [
        f"{key}: {term} on {place} is {our:.2f} MiB, llama.cpp has {their:.2f}"
        for (term, place), (our, their) in pairs.items()
        if abs(our - their) > EXACT
    ]


# Dry runs of all shapes


ON_CPU = {key: each for key, each in zoo_cases.cases(MODELS, None).items() if "128" in key or "f16" in key}
SPLIT = zoo_cases.a_few({key: each for key, each in zoo_cases.cases(MODELS, VULKAN).items() if each[1].device})


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return zoo_cases.measured(ON_CPU, tmp_path_factory.mktemp("ghosts"))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, lavapipe: str) -> Measured:
    assert lavapipe == VULKAN
    return zoo_cases.measured(SPLIT, tmp_path_factory.mktemp("ghosts"))


@pytest.mark.parametrize("model", MODELS)
def test_every_term_on_the_cpu(on_cpu: Measured, model: str) -> None:
    own = {key: each for key, each in ON_CPU.items() if each[0] == model}
    assert len(own) >= 5
    assert [line for key, (name, case) in own.items() for line in differences(key, on_cpu[key], name, case)] == []


@pytest.mark.vulkan
@pytest.mark.parametrize("model", MODELS)
def test_every_term_on_both_devices_at_every_split(split: Measured, model: str) -> None:
    own = {key: each for key, each in SPLIT.items() if each[0] == model}
    assert {case.gpu_layers for _, case in own.values()} >= {0, 1, zoo_cases.info(model).layers + 1}
    assert [line for key, (name, case) in own.items() for line in differences(key, split[key], name, case)] == []


# Rules that need a model or a setting of their own


def measured_one(case: Case, path: Path, model: str = "qwen3-8b") -> Bytes | str:
    return zoo_cases.measured({"one": (model, case)}, path)["one"]


def test_a_quantised_cache_without_flash_attention_is_refused(tmp_path: Path) -> None:
    theirs = measured_one(Case("", 4096, kv_type="q8_0", flash_attention="off"), tmp_path)
    assert isinstance(theirs, str)
    assert "requires flash_attn" in theirs
    assert memory.refusal(zoo_cases.info("qwen3-8b"), "q8_0", "off") == "a KV cache of type q8_0 needs flash attention"
    assert memory.refusal(zoo_cases.info("qwen3-8b"), "q8_0", "auto") is None
    assert memory.refusal(zoo_cases.info("mamba-2.8b"), "q8_0", "off") is None


def test_a_quantised_cache_of_odd_heads_is_refused(tmp_path: Path) -> None:
    shape = MODELS["llama-3.2-1b"]
    odd = dataclasses.replace(
        shape, metadata=shape.metadata | {"attention.key_length": 80, "attention.value_length": 80}, freqs=40
    )
    part = zoo.of(odd, "odd")
    info = model_info(parse_header(part.data, part.file_bytes, "odd"))
    theirs = zoo_cases.measured_file(part, Case("", 4096, kv_type="q8_0"), tmp_path)
    assert isinstance(theirs, str)
    assert "does not divide n_embd_head_k=80" in theirs
    assert memory.refusal(info, "q8_0", "auto") == "a KV cache of type q8_0 needs heads of a multiple of 32, not 80"
    assert memory.refusal(info, "f16", "auto") is None


def test_without_flash_attention_values_are_as_wide_as_the_widest(tmp_path: Path) -> None:
    """Gemma 4's full layers have fewer, larger heads than those with a window."""
    metadata = {
        **MODELS["gemma-3-12b"].metadata,
        "block_count": 6,
        "vocab_size": 4096,
        "attention.head_count_kv": [8, 8, 8, 8, 8, 1],
        "attention.sliding_window_pattern": [1, 1, 1, 1, 1, 0],
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "rope.dimension_count": 512,
        "rope.dimension_count_swa": 256,
    }
    part = zoo.of(ZooModel("gemma4", zoo_shapes.gemma4, metadata, tied=True, freqs=256), "gemma4")
    info = model_info(parse_header(part.data, part.file_bytes, "gemma4"))
    for flash_attention in ("on", "off"):
        theirs = zoo_cases.measured_file(part, Case("", 8192, flash_attention=flash_attention), tmp_path)
        assert not isinstance(theirs, str), theirs
        ours = memory.device_kv(info, 7, 8192, "f16", 512, flash_attention)
        assert ours == pytest.approx(theirs["kv", "CPU"], abs=0.1 * MIB), flash_attention
    assert memory.device_kv(info, 7, 8192, "f16", 512, "off") > memory.device_kv(info, 7, 8192, "f16", 512, "on")


def _has_avx2_only() -> bool:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "avx2" in flags and "amx_tile" not in flags


@pytest.mark.skipif(not _has_avx2_only(), reason="other processors have other second layouts (AMX, Arm)")
@pytest.mark.parametrize("model", ["qwen3-8b", "gpt-oss-20b", "gemma-3n-e4b", "bonsai-27b", "qwen3.5-class-27b"])
def test_the_second_copy_of_repacked_weights(tmp_path: Path, model: str) -> None:
    """What is repacked is not in the CPU's own buffer then, as nothing is mapped in a dry run."""
    theirs = measured_one(Case("", 4096, extra_buffers=True), tmp_path, model)
    assert not isinstance(theirs, str), theirs
    assert memory.repacked_bytes(zoo.parsed(model), zoo_cases.info(model)) == theirs.get(("repacked", "CPU"), 0)


# Real loads


@pytest.mark.vulkan
def test_real_loads_of_smollm2_at_every_split(smollm2: Model, lavapipe: str) -> None:
    """Weights, cache and output as they are really allocated; on the host what is mapped, from the first tensor to the last."""
    header = read_header(Path(smollm2.file))
    info = model_info(header)
    several = [Case(smollm2.file, 2048, lavapipe, layers, allocate=True) for layers in range(info.layers + 2)]
    for case, theirs in zip(several, zoo_cases.ask(several), strict=True):
        assert not isinstance(theirs, str), theirs
        layers = case.gpu_layers
        assert theirs.get(("weights", VULKAN), 0) == pytest.approx(memory.device_weights(info, layers), abs=0.01 * MIB)
        assert theirs["weights", "CPU"] == pytest.approx(memory.mapped_bytes(header, layers), abs=0.01 * MIB)
        assert theirs.get(("kv", VULKAN), 0) == memory.device_kv(info, layers, 2048, "f16", 512)
        assert theirs["output", "CPU"] == pytest.approx(memory.output_bytes(info, 1), abs=0.01 * MIB)


@pytest.mark.vulkan
@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid", "experts"])
def test_real_loads_of_every_tiny_kind_at_every_split(tiny: Callable[..., Model], lavapipe: str, kind: str) -> None:
    model = tiny(kind, tied=kind in ("llama", "hybrid"), vocab_size=4096, embedding=128, layers=4)
    header = read_header(Path(model.file))
    info = model_info(header)
    several = [Case(model.file, 1000, lavapipe, layers, ubatch=64, allocate=True) for layers in range(6)]
    for case, theirs in zip(several, zoo_cases.ask(several), strict=True):
        assert not isinstance(theirs, str), theirs
        layers = case.gpu_layers
        assert theirs.get(("weights", VULKAN), 0) == pytest.approx(memory.device_weights(info, layers), abs=0.01 * MIB)
        assert theirs["weights", "CPU"] == pytest.approx(memory.mapped_bytes(header, layers), abs=0.01 * MIB)
        assert theirs.get(("kv", VULKAN), 0) == pytest.approx(memory.device_kv(info, layers, 1000, "f16", 64), abs=0.01 * MIB)
        assert theirs.get(("recurrent", VULKAN), 0) == pytest.approx(memory.device_state(info, layers, 1), abs=0.01 * MIB)

"""Experts on the CPU (`--cpu-moe`): the buffers are where they should be, and the text is that of the CPU."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import LAVAPIPE, answer, ask, load, plan_for
from tokencli.core import Loaded, Model, Plan
from tokencli.engine.client import Engine
from tokencli.plan import memory
from tokencli.plan.check import as_dry_run
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import read_header

pytestmark = pytest.mark.vulkan

BLOCKS = 4
LOG_LINES = 2 * 5243  # two buffers, of which the log tells hundredths of a MiB


@pytest.fixture
def experts(tiny: Callable[..., Model]) -> Model:
    return tiny("experts", layers=BLOCKS, embedding=128, vocab_size=4096)


def run(engine: Engine, plan: Plan) -> tuple[Loaded, str]:
    loaded = load(engine, plan)
    return loaded, answer(engine.generate(ask("Hello", max_tokens=12)))[0]


@pytest.mark.parametrize("gpu_layers", [1, 3, BLOCKS + 1])
def test_buffers_and_text_at_every_number_of_blocks(lavapipe: str, experts: Model, gpu_layers: int) -> None:
    header = read_header(Path(experts.file))
    info = model_info(header)
    sizes = []
    with Engine(environment=LAVAPIPE) as engine:
        _, text = run(engine, plan_for(experts, context=512))
        for cpu_moe in range(BLOCKS + 1):
            split = gpu_layers, cpu_moe
            plan = plan_for(experts, context=512, device=lavapipe, gpu_layers=gpu_layers, cpu_moe_layers=cpu_moe)
            loaded, same = run(engine, plan)
            host, device = loaded.devices
            assert same == text, split
            assert device.weights == pytest.approx(memory.device_weights(info, *split), abs=LOG_LINES), split
            assert host.weights == pytest.approx(memory.mapped_bytes(header, *split), abs=LOG_LINES), split
            expected = memory.placed(plan, info)
            assert [place.kv for place in loaded.devices] == [place.kv for place in expected], split
            sizes.append(device.weights)
    first = memory.first_gpu_block(BLOCKS, gpu_layers)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 1 + BLOCKS - min(first, BLOCKS)  # blocks on the CPU anyway change nothing


def test_a_dry_run_knows_the_compute_buffers_of_experts_on_the_cpu(lavapipe: str, experts: Model) -> None:
    with Engine(environment=LAVAPIPE) as engine:
        for cpu_moe in (0, 1, BLOCKS):
            plan = plan_for(experts, context=512, device=lavapipe, gpu_layers=BLOCKS + 1, cpu_moe_layers=cpu_moe)
            dry = engine.dry_run(plan).devices
            real = load(engine, plan).devices
            assert [(each.id, each.compute) for each in dry] == [(each.id, each.compute) for each in real]


@pytest.mark.parametrize("gpu_layers", [1, 3, BLOCKS + 1])
def test_a_dry_run_tells_whose_experts_stay(lavapipe: str, experts: Model, gpu_layers: int) -> None:
    """What `plan --check` compares with: llama.cpp's own word of each block, not the plan's."""
    info = model_info(read_header(Path(experts.file)))
    with Engine(environment=LAVAPIPE) as engine:
        for cpu_moe in range(BLOCKS + 1):
            plan = plan_for(experts, context=512, device=lavapipe, gpu_layers=gpu_layers, cpu_moe_layers=cpu_moe)
            found = engine.dry_run(plan)
            assert found.cpu_experts == tuple(range(cpu_moe))
            told = {place.id: place.weights for place in as_dry_run(plan, info, found)}
            assert told == {place.id: place.weights for place in memory.placed(plan, info)}, cpu_moe

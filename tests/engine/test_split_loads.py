"""Real loads on lavapipe of what a split must not forget: matrices that the device refuses, and a draft beside the model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import LAVAPIPE, load, plan_for
from tokencli.core import DeviceBytes, Draft, Model, Plan
from tokencli.engine.client import Engine
from tokencli.plan import memory
from tokencli.plan.model_info import model_info
from tokencli.plan.sizes import ModelFile, predicted
from tokencli.world.gguf_file import read_header

pytestmark = pytest.mark.vulkan

LOG_LINES = 4 * 5243  # a few buffers, of which the log tells hundredths of a MiB
LAVAPIPE_BUFFER = 128 << 20


def test_the_limit_is_the_devices_own(lavapipe: str) -> None:
    with Engine(environment=LAVAPIPE) as engine:
        assert engine.tensor_limit(lavapipe) == LAVAPIPE_BUFFER
        assert engine.tensor_limit("CPU") is None
        assert engine.tensor_limit("Vulkan7") is None


@pytest.mark.parametrize("tied", [False, True])
def test_what_the_device_refuses_is_really_on_the_cpu(lavapipe: str, tiny: Callable[..., Model], tied: bool) -> None:
    """70,000 rows: the result for 512 tokens, with which llama.cpp tries the output, is larger than 128 MiB."""
    model = tiny("llama", vocab_size=70_000, tied=tied)
    header = read_header(Path(model.file))
    info = model_info(header)
    (output,) = memory.refused(info, LAVAPIPE_BUFFER)
    seen = memory.seen_by(info, LAVAPIPE_BUFFER)
    with Engine(environment=LAVAPIPE) as engine:
        for layers in (1, 3, info.offloadable_layers):
            plan = plan_for(model, context=256, device=lavapipe, gpu_layers=layers)
            host, device = load(engine, plan).devices
            assert device.weights == pytest.approx(memory.device_weights(seen, layers), abs=LOG_LINES), layers
            mapped = memory.mapped_bytes(header, layers, 0, {output.name})
            assert host.weights == pytest.approx(mapped, abs=LOG_LINES), layers
            assert memory.device_weights(info, layers) - device.weights > 0.9 * output.bytes


def test_a_draft_beside_its_target_takes_what_is_predicted(lavapipe: str, tiny: Callable[..., Model]) -> None:
    target, small = (tiny("llama", vocab_size=20_000, layers=layers) for layers in (4, 1))
    files = [ModelFile.of(model_info(read_header(Path(model.file))), model.file, model.name) for model in (target, small)]
    draft = Draft("model", small.file, lavapipe, 4, 0.0)
    plan = plan_for(target, context=256, device=lavapipe, gpu_layers=5, draft=draft)
    with Engine(environment=LAVAPIPE) as engine:

        def dry_run(each: Plan) -> tuple[DeviceBytes, ...]:
            return engine.dry_run(each).devices

        _, device = predicted(plan, files[0].info, files[1], dry_run)
        _, loaded = load(engine, plan).devices
    assert device.draft > 1 << 20
    for term in ("weights", "kv", "compute", "draft"):
        assert getattr(loaded, term) == pytest.approx(getattr(device, term), abs=LOG_LINES), term

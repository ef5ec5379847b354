"""A real Vulkan device without a GPU: Mesa's lavapipe. The split changes where buffers are, never the text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import LAVAPIPE, answer, ask, load, plan_for
from tokencli.app.isolation import MODES, NO_GPU, NO_MATRICES
from tokencli.core import Loaded, Model
from tokencli.engine.client import Engine

pytestmark = pytest.mark.vulkan

LAYERS = 12


def run_split(model: Model, gpu_layers: int, device: str) -> tuple[Loaded, str]:
    plan = plan_for(model, gpu_layers=gpu_layers, device=device if gpu_layers else None, context=512)
    with Engine(environment=LAVAPIPE) as engine:
        loaded = load(engine, plan)
        return loaded, answer(engine.generate(ask("Hello", max_tokens=8)))[0]


def test_every_split_gives_the_text_of_the_cpu_with_its_buffers_where_they_should_be(
    lavapipe: str, tiny: Callable[..., Model]
) -> None:
    """Nothing lands on a device that is not the plan's, though llama.cpp lists it (reports A1-20, A2-24, A2-25)."""
    model = tiny("llama", layers=LAYERS)
    cpu, text = run_split(model, 0, lavapipe)
    assert {place.id for place in cpu.devices} == {"CPU"}
    sizes = []
    for gpu_layers in (10, LAYERS + 1):
        loaded, split_text = run_split(model, gpu_layers, lavapipe)
        places = {place.id: place for place in loaded.devices}
        assert split_text == text
        assert loaded.gpu_layers == gpu_layers
        assert set(places) == {"CPU", lavapipe}
        assert places[lavapipe].weights > 0
        assert places[lavapipe].compute > 0
        on_cpu = LAYERS - (gpu_layers - 1)  # the output layer counts first
        assert places["CPU"].kv == cpu.devices[0].kv * on_cpu // LAYERS
        assert places[lavapipe].kv == cpu.devices[0].kv * (LAYERS - on_cpu) // LAYERS
        sizes.append(places[lavapipe].weights)
    assert sizes[0] < sizes[1]


def test_llama_cpp_hides_the_software_device_unless_told(lavapipe: str) -> None:
    """Report A1-11, A1-12: nobody gets the CPU disguised as a GPU by default."""
    with Engine() as engine:
        assert [device.id for device in engine.devices()] == ["CPU"]


@pytest.mark.parametrize(("mode", "listed"), [(NO_GPU, False), ("without Vulkan", False), (NO_MATRICES, True)])
def test_a_mode_without_gpus_does_not_even_load_their_driver(lavapipe: str, mode: str, listed: bool) -> None:
    """Report A1-34: nothing that could wake a card is opened for a plan on the CPU."""
    with Engine(environment={**LAVAPIPE, **MODES[mode]}) as engine:
        devices = [device.id for device in engine.devices()]
        mapped = Path(f"/proc/{engine.process_id}/maps").read_text()
    assert (lavapipe in devices) == listed
    assert ("libvulkan_lvp" in mapped) == listed

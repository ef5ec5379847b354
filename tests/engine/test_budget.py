"""The split that the planner chooses for 2048 MiB of lavapipe: llama.cpp's own figures fill the budget and never exceed it.

Shapes with a vocabulary of at most 32,000, as lavapipe takes no tensor above 128 MiB (docs/memory.md).
"""

from pathlib import Path

import pytest

from tests import zoo, zoo_cases, zoo_shapes
from tests.conftest import LAVAPIPE
from tests.zoo_measure import Case
from tests.zoo_models import ZooModel, config
from tokencli.core import Device, DeviceBytes, Machine, Plan
from tokencli.engine.client import Engine
from tokencli.plan.choose import Wishes
from tokencli.plan.model_info import model_info
from tokencli.plan.planner import Planner
from tokencli.plan.sizes import ModelFile
from tokencli.world.catalogue import data_folder
from tokencli.world.gguf_file import parse_header
from tokencli.world.ghost import Ghosts
from tokencli.world.settings import read_profiles

pytestmark = pytest.mark.vulkan

MIB, GIB = 1 << 20, 1 << 30
SHAPES = {  # the classes of well-known sizes, 0.6 to 7.4 GiB
    "1.1B": config(22, 4096, 32_000, 2048, 5632, 32, 4),
    "3B": config(26, 4096, 32_000, 3200, 8640, 32, 32),
    "7B": config(32, 4096, 32_000, 4096, 11_008, 32, 32),
    "13B": config(40, 4096, 30_000, 5120, 13_824, 40, 40),
}


@pytest.mark.parametrize("context", [2048, 4096])
@pytest.mark.parametrize("size", SHAPES)
def test_the_chosen_split_fills_the_budget_and_never_exceeds_it(lavapipe: str, tmp_path: Path, size: str, context: int) -> None:
    part = zoo.of(ZooModel("llama", zoo_shapes.llama, SHAPES[size]), size)
    info = model_info(parse_header(part.data, part.file_bytes, size))
    card = Device(lavapipe, "gpu", "llvmpipe", 2 * GIB, 2 * GIB)
    machine = Machine(2, 64 * GIB, 64 * GIB, (card,))
    with Ghosts(tmp_path) as ghosts, Engine(environment=LAVAPIPE) as engine:
        target = ModelFile.of(info, str(ghosts.of(size, [part])), size)

        def dry_run(plan: Plan) -> tuple[DeviceBytes, ...]:
            return engine.dry_run(plan).devices

        plan = Planner(target, machine, read_profiles(data_folder()), dry_run).plan(Wishes(device=lavapipe, context=context))
    case = Case("", plan.context, lavapipe, plan.gpu_layers, batch=plan.batch, ubatch=plan.ubatch)
    actual = zoo_cases.measured_file(part, case, tmp_path)
    assert not isinstance(actual, str), actual
    used = sum(bytes_ for (_, place), bytes_ in actual.items() if place == zoo_cases.VULKAN)
    budget = 0.9 * 2 * GIB
    assert used <= budget
    if plan.gpu_layers < info.offloadable_layers:
        assert used > 0.85 * budget, f"{plan.gpu_layers} layers take {used / MIB:.0f} MiB"
    else:
        assert size == "1.1B"

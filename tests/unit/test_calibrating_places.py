"""Which devices `tune` calibrates for a plan, and how a yardstick is run there."""

import dataclasses

from tests.unit.test_app import PLAN
from tests.unit.test_planner import CARD, IGPU, TARGET, machine
from tokencli.app.calibrating import Own, Place, _alone, _places
from tokencli.core import Plan


def no_engine() -> None:
    raise AssertionError("nothing is measured here")


def places(plan: Plan) -> dict[str, Place]:
    here = machine(IGPU, CARD)
    return {each.device.id: each for each in _places(Own(no_engine, plan, TARGET.info), here)}  # type: ignore[arg-type]


CPU = dataclasses.replace(PLAN, model=TARGET.model, device=None, backend="cpu", gpu_layers=0, threads=6)
FULL = TARGET.model.offloadable_layers
CUDA = dataclasses.replace(CPU, device="CUDA0", backend="cuda", gpu_layers=FULL)


def test_what_a_plan_computes_on_is_calibrated_and_nothing_else() -> None:
    assert set(places(CPU)) == {"CPU"}
    assert set(places(CUDA)) == {"CUDA0"}
    for split in (dataclasses.replace(CUDA, gpu_layers=3), dataclasses.replace(CUDA, cpu_moe_layers=2)):
        found = places(split)
        assert set(found) == {"CPU", "CUDA0"}
        assert not any(_alone(split, place) for place in found.values()), "its token is spent on both"


def test_threads_tell_calibrations_of_the_cpu_apart_and_none_of_a_card() -> None:
    assert places(CPU)["CPU"].key == ("CPU", 6)
    assert places(CUDA)["CUDA0"].key == ("CUDA0", None)
    assert _alone(CPU, places(CPU)["CPU"])
    assert not _alone(dataclasses.replace(CPU, threads=3), places(CPU)["CPU"])
    assert _alone(CUDA, places(CUDA)["CUDA0"])


def test_a_yardstick_is_all_on_the_device_without_a_draft() -> None:
    split = dataclasses.replace(CUDA, gpu_layers=3, cpu_moe_layers=1)
    for device, layers in (("CUDA0", TARGET.info.layers + 1), ("CPU", 0)):
        plan = places(split)[device].plan_for("y.gguf", TARGET.info)
        assert (plan.gpu_layers, plan.cpu_moe_layers, plan.draft, plan.model.file) == (layers, 0, None, "y.gguf")
        assert plan.device == (device if layers else None)

"""`plan` and `doctor` on a computer whose memory other programs hold: they are named where that would change something."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tokencli import app
from tokencli.app.doctor import Report, doctor
from tokencli.app.plan import plan
from tokencli.core import Device, Holder, Machine, Model
from tokencli.engine.client import Engine
from tokencli.errors import DoesNotFit
from tokencli.plan.choose import Wishes
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")
GIB = 1 << 30


@pytest.fixture
def world(tmp_path: Path) -> app.World:
    (tmp_path / "cache").mkdir()
    return app.World(
        start_engine=lambda: Engine([sys.executable, "-S", str(WORKER)]),
        start_safer_engine=lambda environment: Engine([sys.executable, "-S", str(WORKER)], environment),
        find_verdicts=lambda: Verdicts(tmp_path / "verdicts.json", "build", "driver"),
        read_machine=machine(6 << 20),
        read_holders=lambda: (Holder("chrome", 4 * GIB),),
        backends=lambda: ("cpu",),
        cache=tmp_path / "cache",
        own=tmp_path / "models.toml",
    )


def machine(available: int) -> Callable[[list[Device]], Machine]:
    return lambda devices: Machine(2, 8 * GIB, available, tuple(devices), memory_bandwidth=10**10)


def test_a_plan_names_what_stands_in_its_way(world: app.World, tiny: Callable[..., Model]) -> None:
    file = tiny("llama", context=1 << 16).file
    found = plan(file, Wishes(), None, world).plan
    assert found.context < 4096 or found.kv_type != "f16", "else there is nothing to gain"
    assert found.notes[-1].startswith("if chrome (4.0 GiB) were closed: a ")
    with pytest.raises(DoesNotFit) as caught:
        plan(file, Wishes(context=1 << 16, kv_type="f16"), None, world)
    assert caught.value.hint.endswith("; closing chrome (4.0 GiB) would make it fit")


def test_a_plan_for_another_computer_has_nothing_to_do_with_the_programs_here(
    world: app.World, tiny: Callable[..., Model]
) -> None:
    asked = []
    seeing = replace(world, start_engine=Engine, read_holders=lambda: asked.append(1) or ())
    plan(tiny().file, Wishes(), "cpu-16gb", seeing)
    assert asked == []


@pytest.mark.parametrize(("available", "said"), [(GIB, True), (7 * GIB, False)])
def test_doctor_tells_what_would_go_without_them(
    world: app.World, tiny: Callable[..., Model], available: int, said: bool
) -> None:
    looking = replace(world, read_machine=machine(available))
    (report,) = [each for each in doctor(looking, tiny().file) if isinstance(each, Report)]
    named = [each.what for each in report.findings if "chrome (4.0 GiB) hold RAM" in each.what]
    assert bool(named) == said
    assert all("qwen3-4b" in each for each in named)

"""What would be gained if the programs that hold the most memory were closed: said where it is something, by their names."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_planner import CARD, CPU, GIB, IGPU, MIB, PROFILES, TARGET, dry_run
from tokencli.core import Device, Holder, Machine
from tokencli.errors import DoesNotFit
from tokencli.listing import File, Variant
from tokencli.plan.choose import Wishes
from tokencli.plan.idle import fits_if_closed, if_closed, more_if_closed
from tokencli.plan.planner import Planner
from tokencli.world.catalogue import data_folder
from tokencli.world.holders import read_holders, summed
from tokencli.world.settings import read_speeds

BROWSER, EDITOR, SMALL = Holder("chrome", 2 * GIB), Holder("code", 900 * MIB), Holder("bash", 50 * MIB)
QUANTS = tuple(Variant(quant, (File(f"m-{quant}.gguf", size),)) for quant, size in (("Q4_K_M", 1200 * MIB), ("Q8_0", 2400 * MIB)))


def planner(available: int, *devices: Device, target: object = TARGET) -> Planner:
    here = Machine(cores=8, ram_total_bytes=16 * GIB, ram_available_bytes=available, devices=(*devices, CPU))
    return Planner(target, here, PROFILES, dry_run)  # type: ignore[arg-type]


def told(planner: Planner, *holders: Holder, **wishes: object) -> str | None:
    wanted = Wishes(**wishes)
    return if_closed(planner.plan(wanted), planner, wanted, holders)


def test_more_layers() -> None:
    here = planner(int(1.2 * GIB), IGPU)
    before = here.plan(Wishes(context=4096, kv_type="f16")).gpu_layers
    assert 0 < before < 11
    found = told(here, BROWSER, context=4096, kv_type="f16")
    assert found
    assert found.startswith(f"if chrome (2.0 GiB) were closed: 11 layers on Vulkan0 instead of {before}")


def test_a_larger_quant() -> None:
    here = planner(2 * GIB, target=dataclasses.replace(TARGET, offered=QUANTS))
    assert here.choose(Wishes()) is here.target
    assert told(here, BROWSER, EDITOR) == "if chrome (2.0 GiB) and code (0.9 GiB) were closed: Q8_0 instead of Q4_K_M"


def test_a_longer_context_and_a_finer_cache() -> None:
    here = planner(300 * MIB)
    now = here.plan(Wishes())
    found = told(here, BROWSER)
    assert found
    assert f"a context of 4096 instead of {now.context}" in found or f"a KV cache of f16 instead of {now.kv_type}" in found


def test_weights_that_need_not_be_read_again() -> None:
    assert told(planner(int(1.2 * GIB)), BROWSER) == "if chrome (2.0 GiB) were closed: nothing read from the disk again"


@pytest.mark.parametrize(
    ("here", "holders"),
    [
        (planner(8 * GIB, IGPU), (BROWSER,)),  # all fits already
        (planner(int(1.2 * GIB), IGPU), (SMALL,)),  # too small to be worth it
        (planner(int(1.2 * GIB), IGPU), ()),
        (planner(8 * GIB, dataclasses.replace(CARD, free_bytes=GIB)), (BROWSER,)),  # the card's memory is no RAM
    ],
)
def test_nothing_is_said_where_nothing_is_gained(here: Planner, holders: tuple[Holder, ...]) -> None:
    assert told(here, *holders) is None


def test_inside_a_limit_nobody_knows_whose_memory_would_come_back() -> None:
    here = planner(int(1.2 * GIB), IGPU)
    limited = dataclasses.replace(here, machine=dataclasses.replace(here.machine, ram_limit_bytes=4 * GIB))
    assert told(limited, BROWSER) is None


def test_a_model_that_does_not_fit_would() -> None:
    here, wishes = planner(200 * MIB), Wishes(context=32768, kv_type="f16")
    with pytest.raises(DoesNotFit):
        here.plan(wishes)
    assert fits_if_closed(here, wishes, (SMALL, BROWSER)) == "closing chrome (2.0 GiB) would make it fit"
    assert fits_if_closed(here, wishes, (SMALL,)) is None


def test_only_the_largest_three_are_named() -> None:
    many = [Holder(name, size * GIB) for name, size in (("a", 1), ("b", 4), ("c", 2), ("d", 3))]
    found = told(planner(int(1.2 * GIB)), *many)
    assert found
    assert found.startswith("if b (4.0 GiB), d (3.0 GiB) and c (2.0 GiB) were closed")


def test_doctor_names_the_models_that_would_go() -> None:
    machine = planner(4 * GIB, IGPU).machine
    sizes = {"small": (1 * GIB, 1.0), "middle": (5 * GIB, 1.0), "huge": (80 * GIB, 1.0)}
    (found,) = more_if_closed(sizes, machine, PROFILES, read_speeds(data_folder()), (BROWSER, EDITOR))
    assert (found.level, found.what) == ("warn", "chrome (2.0 GiB) and code (0.9 GiB) hold RAM that middle would need to fit")
    assert found.hint
    for holders in ((), (SMALL,)):
        assert list(more_if_closed(sizes, machine, PROFILES, read_speeds(data_folder()), holders)) == []
    del sizes["middle"]
    assert list(more_if_closed(sizes, machine, PROFILES, read_speeds(data_folder()), (BROWSER,))) == []


def test_programs_of_one_name_are_one_and_no_name_commands_a_terminal() -> None:
    assert summed([("chrome", 5), ("bash", 9), ("chrome", 7), ("\x1b[2Jevil\n", 3), ("\x07", 99)]) == (
        Holder("chrome", 12),
        Holder("bash", 9),
        Holder("[2Jevil", 3),
    )


def test_the_programs_here_are_read_without_this_one_and_what_it_started(tmp_path: Path) -> None:
    program = tmp_path / "holds-memory"  # the name of a process is that of the file it was started by
    program.symlink_to(Path(sys.executable).resolve())
    hold = "import time; held = b'x' * (48 << 20); print(flush=True); time.sleep(60)"
    for command, seen in (
        ([program, "-I", "-S", "-c", hold], False),
        (["sh", "-c", f'{program} -I -S -c "{hold}" & wait'], True),
    ):
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout
            process.stdout.readline()
            found = {each.name: each.bytes for each in read_holders()}
            os.killpg(process.pid, signal.SIGKILL)
        assert ("holds-memory" in found) == seen
    assert 48 * MIB <= found["holds-memory"] < 70 * MIB
    assert list(found.values()) == sorted(found.values(), reverse=True)

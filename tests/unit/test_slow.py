"""An answer far below its prediction is told with likely causes; anything else is not (report A7-12)."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.test_planner import GIB, IGPU, MIB, TARGET, machine
from tokencli.core import DeviceBytes, Machine, Plan, Prediction, Stats, Strain
from tokencli.plan.slow import is_far_below, slower_than_predicted
from tokencli.world.strain import busy_programs, read_strain, swapped_bytes

PREDICTED = Prediction(decode_tokens_per_second=20.0, origin="predicted")
PLAN = Plan(TARGET.model, "vulkan", 11, 4096, 8, device="Vulkan0", predicted=PREDICTED)
STATS = Stats(10, 0, 64, 1.0, 0.5, 100.0, 7.9, None, None, 0, 0, None)
QUIET = Strain()
HERE = machine(IGPU)
TERNARY = dataclasses.replace(PLAN, backend="cuda", model=dataclasses.replace(TARGET.model, quant="TQ1_0"))
TOO_LARGE = dataclasses.replace(PLAN, devices=(DeviceBytes("CPU", "cpu", weights=17 * GIB),))


@pytest.mark.parametrize(
    ("plan", "here", "strain", "cause"),
    [
        (PLAN, dataclasses.replace(HERE, on_ac=False), QUIET, "it runs on battery"),
        (
            PLAN,
            machine(dataclasses.replace(IGPU, performance_level="auto")),
            QUIET,
            "Vulkan0 is at performance level auto",
        ),
        (
            PLAN,
            HERE,
            Strain((("chrome", 1.94), ("code", 0.5), ("bash", 0.19))),
            "other programs keep cores busy: chrome (1.9), code (0.5)",
        ),
        (TERNARY, HERE, QUIET, "the cuda backend has no kernel for TQ1_0: it would run on the CPU, with a copy each way"),
        (PLAN, HERE, Strain(swapped_bytes=700 * MIB), "0.7 GiB of the engine were swapped out: the memory is full"),
        (TOO_LARGE, HERE, QUIET, "more weights are on the CPU than there was free RAM"),
        (PLAN, dataclasses.replace(HERE, cpu_quota=2.0), QUIET, "a control group grants 2 CPUs"),
        (
            PLAN,
            HERE,
            QUIET,
            "nothing here tells why; the vulkan backend may have no fast kernel for Q4_K_M, or what was predicted is wrong",
        ),
    ],
)
def test_the_cause_that_is_seen_is_told_and_no_other(plan: Plan, here: Machine, strain: Strain, cause: str) -> None:
    assert slower_than_predicted(plan, STATS, here, strain) == f"7.9 tokens/s, where 20.0 were predicted: {cause}"


def test_the_causes_of_this_machine_come_first() -> None:
    here = dataclasses.replace(machine(dataclasses.replace(IGPU, performance_level="auto")), on_ac=False, cpu_quota=2.0)
    assert slower_than_predicted(PLAN, STATS, here, Strain((("chrome", 1.0),))) == (
        "7.9 tokens/s, where 20.0 were predicted: it runs on battery; Vulkan0 is at performance level auto; "
        "other programs keep cores busy: chrome (1.0); a control group grants 2 CPUs"
    )


def test_a_prediction_is_called_one_whatever_it_comes_from() -> None:
    plan = dataclasses.replace(PLAN, predicted=dataclasses.replace(PREDICTED, origin="calibrated"))
    told = slower_than_predicted(plan, STATS, dataclasses.replace(HERE, cpu_quota=2.0), QUIET)
    assert told.startswith("7.9 tokens/s, where 20.0 were predicted by what tune measured here: ")


@pytest.mark.parametrize(
    ("plan", "stats", "expected"),
    [
        (PLAN, STATS, True),
        (PLAN, dataclasses.replace(STATS, decode_tokens_per_second=8.0), False),
        (PLAN, dataclasses.replace(STATS, decode_tokens_per_second=None), False),
        (PLAN, dataclasses.replace(STATS, tokens=15), False),
        (dataclasses.replace(PLAN, predicted=Prediction()), STATS, False),
    ],
)
def test_what_is_as_expected_or_not_known_is_not_said(plan: Plan, stats: Stats, expected: bool) -> None:
    assert is_far_below(plan, stats) == expected


def test_programs_of_one_name_are_busy_together_and_new_ones_count_from_their_start() -> None:
    before = {1: ("chrome", 5.0), 2: ("chrome", 7.0), 3: ("ours", 1.0), 4: ("gone", 3.0), 5: ("old", 9.0)}
    after = {1: ("chrome", 5.2), 2: ("chrome", 7.1), 3: ("ours", 2.0), 5: ("other", 9.9), 6: ("new", 0.05)}
    found = dict(busy_programs(before, after, 0.5, own=(3,)))
    assert found == pytest.approx({"chrome": 0.6, "new": 0.1})
    assert next(iter(found)) == "chrome"


def test_a_busy_program_here_is_seen_by_its_name(tmp_path: Path) -> None:
    program = tmp_path / "never-idle"
    program.symlink_to(Path(sys.executable).resolve())
    with subprocess.Popen([program, "-I", "-S", "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE) as busy:
        assert busy.stdout
        busy.stdout.readline()
        names = [dict(read_strain(worker).programs).get("never-idle", 0.0) for worker in (os.getpid(), busy.pid)]
        busy.kill()
    assert names[0] > 0.05
    assert names[1] == 0, "the engine's own work is none of other programs"


def test_what_is_swapped_out_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text("Name:\tpython\nVmRSS:\t  900 kB\nVmSwap:\t  2048 kB\n")
    assert swapped_bytes(7, tmp_path) == 2 * MIB
    assert swapped_bytes(8, tmp_path) is None
    assert read_strain(7, lambda _: time.sleep(0.01), tmp_path).swapped_bytes == 2 * MIB

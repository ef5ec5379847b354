"""What goes on a machine, the best first: by plans where a header is at hand, else by sizes."""

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.test_planner import PROFILES
from tokencli.app import World
from tokencli.app.models import Line
from tokencli.app.ranking import no_model, ranked
from tokencli.core import Machine, Speeds
from tokencli.errors import EngineMissing
from tokencli.plan.outlook import outlook
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_snapshot
from tokencli.world.settings import read_speeds

NOBODY = "http://127.0.0.1:9"
SPEEDS = read_speeds(data_folder())
GB = 10**9


def lines(world_of: Callable[..., World], machine: str) -> dict[str, Line]:
    return {line.name: line for line in ranked(world_of(NOBODY), machine)}


@pytest.mark.parametrize(
    ("machine", "name", "placement"),
    [
        ("amd-780m-32gb", "bonsai-27b", "whole"),
        ("amd-780m-32gb", "qwen3-coder-30b-a3b", "split"),
        ("cuda-6gb-16gb", "bonsai-27b", "whole"),
        ("cuda-6gb-16gb", "qwen3-4b", "whole"),
        ("cuda-6gb-16gb", "qwen3-coder-30b-a3b", "split"),
        ("cuda-6gb-16gb", "qwen3.6-35b-a3b", "no"),
        ("cpu-16gb", "qwen3-4b", "whole"),
        ("cpu-16gb", "qwen3-coder-30b-a3b", "no"),
        ("cpu-16gb", "qwen3-8b", "whole"),
    ],
)
def test_how_the_catalogue_goes_on_the_shipped_machines(
    machine: str, name: str, placement: str | None, world_of: Callable[..., World]
) -> None:
    line = lines(world_of, machine)[name]
    assert (line.placement, line.fits) == (placement, None if placement is None else placement != "no")
    assert (line.decode_tokens_per_second is not None) == (line.speed_origin == "predicted") == (placement in ("whole", "split"))


@pytest.mark.parametrize(
    ("machine", "first"),
    [
        ("amd-780m-32gb", ["gpt-oss-20b", "qwen3.5-9b", "qwen3-8b"]),
        ("cuda-6gb-16gb", ["bonsai-27b", "gemma-4-e2b", "qwen3.5-4b"]),
        ("cpu-16gb", ["qwen3-4b", "bonsai-8b", "lfm2.5-1.2b"]),
    ],
)
def test_the_best_come_first(machine: str, first: list[str], world_of: Callable[..., World]) -> None:
    """A CPU stays at 4 to 8 billion weights; what cannot be run is last."""
    found = lines(world_of, machine)
    assert list(found)[:3] == first
    fits = [line.fits for line in found.values()]
    assert fits == sorted(fits, key=lambda each: {True: 0, None: 1, False: 2}[each])


def test_without_a_model_the_best_three_are_named_even_without_an_engine(world_of: Callable[..., World]) -> None:
    def missing() -> object:
        raise EngineMissing("not installed")

    here = read_snapshot("cpu-16gb", data_folder())
    world = world_of(NOBODY, start_engine=missing, read_machine=lambda _: here)
    error = no_model(world)
    assert error.exit_code == 2
    assert error.hint.startswith("the best for this machine: qwen3-4b (general, with reasoning), bonsai-8b (")
    assert error.hint.endswith("; all: tokencli models list")


def test_an_unknown_bandwidth_predicts_nothing_and_still_keeps_a_cpu_from_what_is_too_slow() -> None:
    here = read_snapshot("cpu-16gb", data_folder())
    cpu = dataclasses.replace(here.devices[0], bandwidth_bytes_per_second=None)
    unknown = Machine(here.cores, here.ram_total_bytes, here.ram_available_bytes, (cpu,))
    large, small = (outlook(size, 1.0, unknown, PROFILES, Speeds({}, 40)) for size in (9 * GB, 4 * GB))
    assert (large.decode, large.placement) == (None, "whole")
    assert small.order > large.order
    mixture, dense = (outlook(9 * GB, share, here, PROFILES, SPEEDS) for share in (0.1, 1.0))
    assert mixture.order > dense.order
    assert mixture.decode > 9 * dense.decode  # type: ignore[operator]

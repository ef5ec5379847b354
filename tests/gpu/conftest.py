"""A real graphics card for these tests, and the generated models of tests/engine."""

import pytest

from tests.engine.conftest import llama as llama
from tests.engine.conftest import scripted as scripted
from tests.engine.conftest import tiny as tiny
from tokencli.core import Device, Machine
from tokencli.engine.client import Engine
from tokencli.plan.choose import Wishes, choose_device
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_machine
from tokencli.world.settings import read_profiles

QUIRKS = [quirk for profile in read_profiles(data_folder()) for quirk in profile.quirks]  # they may prefer another backend


@pytest.fixture(scope="session")
def here() -> Machine:
    """This computer with its GPUs; skips, loudly (tests/conftest.py), where there is none."""
    with Engine() as engine:
        machine = read_machine(engine.devices())
    if choose_device(machine, Wishes(), QUIRKS) is None:
        pytest.skip("llama.cpp lists no GPU here: build with TOKENCLI_BUILD=cuda or vulkan on a computer with a card")
    return machine


@pytest.fixture(scope="session")
def card(here: Machine) -> Device:
    device = choose_device(here, Wishes(), QUIRKS)
    assert device
    return device

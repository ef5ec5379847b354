"""The software Vulkan device for all tests; says loudly what a run did not test: skipped must not look like passed."""

import signal
from collections.abc import Iterator

import pytest

from tokencli.engine.client import Engine

LAVAPIPE = {"GGML_VK_VISIBLE_DEVICES": "0"}


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    for mark, title in (("vulkan", "VULKAN WAS NOT TESTED"), ("gpu", "NO GRAPHICS CARD WAS TESTED")):
        skipped = [report for report in terminalreporter.stats.get("skipped", []) if mark in report.keywords]
        if skipped:
            reason = skipped[0].longrepr[2] if isinstance(skipped[0].longrepr, tuple) else ""
            terminalreporter.section(title, sep="!", red=True, bold=True)
            terminalreporter.line(f"{len(skipped)} tests skipped. {reason}")
    yield


@pytest.fixture(scope="session")
def lavapipe() -> str:
    """The id of the software Vulkan device; skips, loudly (tests/conftest.py), where there is none."""
    with Engine(environment=LAVAPIPE) as engine:
        devices = [device.id for device in engine.devices() if device.id.startswith("Vulkan")]
    if not devices:
        pytest.skip("llama.cpp lists no Vulkan device: a CPU build, or Mesa's lavapipe (mesa-vulkan-drivers) is not installed")
    return devices[0]


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> None:
    """A shell that starts the tests in the background has SIGINT ignored by all that they start, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""Says loudly what a run did not test: a skipped Vulkan test must not look like a passed one."""

from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    skipped = terminalreporter.stats.get("skipped", [])
    vulkan = [report for report in skipped if "vulkan" in report.keywords]
    if vulkan:
        reason = vulkan[0].longrepr[2] if isinstance(vulkan[0].longrepr, tuple) else ""
        terminalreporter.section("VULKAN WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(vulkan)} tests skipped. {reason}")
    yield

"""The real doctor on this computer."""

import getpass
import json
import os
from pathlib import Path

from tests.cli.conftest import Tokencli
from tokencli.world.machine import parse_snapshot


def test_the_report_is_the_contracts_object_and_names_nobody(tokencli: Tokencli, tmp_path: Path) -> None:
    done = tokencli("doctor", "--json", env={"TOKENCLI_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"machine", "findings"}
    assert all(set(each) == {"level", "what", "hint"} for each in report["findings"])
    assert any(each["what"].startswith("CPU answers: ") and each["level"] == "pass" for each in report["findings"])
    assert parse_snapshot(json.dumps(report["machine"])).memory_bandwidth
    assert str(Path.home()) not in done.stdout
    assert getpass.getuser() == "root" or getpass.getuser() not in done.stdout
    snapshot = tmp_path / "here.json"
    snapshot.write_text(json.dumps(report["machine"]))
    assert tokencli("plan", "smollm2-135m", "--machine", str(snapshot), "--json").returncode == 0


def test_no_tool_on_the_path_is_asked(tokencli: Tokencli, tmp_path: Path) -> None:
    """Reports A1-18, A1-22: that vulkaninfo or nvidia-smi is there and talks of a card is no card."""
    tools, asked = tmp_path / "tools", tmp_path / "asked"
    tools.mkdir()
    for name in ("vulkaninfo", "nvidia-smi", "rocm-smi", "rocminfo", "lspci", "clinfo", "lshw", "wmic", "powershell"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >> {asked}\necho 'NVIDIA GeForce RTX 4090, 24564 MiB'\n")
        (tools / name).chmod(0o755)
    found = {}
    for path in (os.environ["PATH"], f"{tools}:{os.environ['PATH']}"):
        done = tokencli("plan", "smollm2-135m", "--json", env={"PATH": path})
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)["plan"]
        found[path] = plan["backend"], [place["id"] for place in plan["devices"]]
    assert not asked.exists(), asked.read_text()
    assert len({str(each) for each in found.values()}) == 1


def test_a_person_reads_a_line_per_finding_and_nothing_on_stderr(tokencli: Tokencli, tmp_path: Path) -> None:
    verdicts = tmp_path / "cache" / "tokencli" / "verdicts.json"
    verdicts.parent.mkdir(parents=True)
    verdicts.write_text('{"an old build": "no extra buffers"}')
    done = tokencli("doctor", "--forget")
    assert done.returncode == 0
    assert done.stderr == ""
    first, *rest = done.stdout.splitlines()
    assert first == "1 verdict of earlier failures forgotten"
    assert all(line.startswith(("PASS  ", "WARN  ", "FAIL  ", "      ")) for line in rest)
    assert not verdicts.exists()


def test_the_device_may_come_from_the_environment(tokencli: Tokencli) -> None:
    done = tokencli("plan", "smollm2-135m", env={"TOKENCLI_DEVICE": "Vulkan7"})
    assert done.returncode == 2
    assert "llama.cpp lists no device Vulkan7" in done.stderr
    elsewhere = tokencli("plan", "smollm2-135m", "--machine", "cpu-16gb", env={"TOKENCLI_DEVICE": "Vulkan7"})
    assert elsewhere.returncode == 0, "it is of this computer"

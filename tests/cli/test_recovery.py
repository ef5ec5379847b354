"""The real command under RLIMIT_AS with more layers on the device than it may have: the ladder ends in an answer."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LAVAPIPE

# Addresses that SmolLM2 takes on the CPU: 650 MiB; with layers on lavapipe: 1150.
ENOUGH_FOR_THE_CPU = 900 << 20


@pytest.mark.vulkan
def test_layers_that_the_device_has_no_memory_for_go_to_the_cpu(lavapipe: str, tmp_path: Path) -> None:
    placing = ["--gpu-layers", "all", "--device", lavapipe, "--context", "512", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "tokencli", "run", "smollm2-135m", "Hello", *placing, "--max-tokens", "4", "--json"],
        env={**os.environ, **LAVAPIPE, "XDG_CACHE_HOME": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ENOUGH_FOR_THE_CPU, ENOUGH_FOR_THE_CPU)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["text"]
    assert found["plan"]["gpu_layers"] == 0
    assert "; trying once more with 15 layers on Vulkan0" in done.stderr
    assert "; trying once more on the CPU" in done.stderr

"""What `scripts/bench download` measures: a model fetched by `tokencli models pull` and by `hf download`, in turn, from one
throttled server on this computer."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from measure import interleaved, ratio

from tests.fake_hub import fake_hub
from tests.unit.gguf_bytes import gguf

REPO, FILE = "bench/model-GGUF", "model-F32.gguf"
_ROW = 4096


def download(
    megabytes: Annotated[int, typer.Option(help="Size of the file.")] = 500,
    rate: Annotated[int, typer.Option(help="Megabytes per second that the server sends.")] = 100,
    pairs: Annotated[int, typer.Option(help="How often each is measured.")] = 5,
) -> None:
    """Throughput of a pull against `hf download`, program start and hashing included."""
    data = gguf(tensors=[("token_embd.weight", (_ROW, megabytes * 10**6 // (4 * _ROW)), 0)])
    with fake_hub({REPO: {FILE: data}}) as hub:
        hub.sha256(data)
        hub.bytes_per_second = rate * 1e6
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
        pull = _measured([sys.executable, "-m", "tokencli", "models", "pull", f"hf:{REPO}", "--yes"], environment, len(data))
        other = _measured([str(Path(sys.executable).with_name("hf")), "download", REPO, FILE], environment, len(data))
        ours, theirs = interleaved(pull, other, pairs)
    result = {"ours": ours, "hf download": theirs, "ratio": str(ratio(ours, theirs))}
    print(json.dumps({name: _rounded(each) for name, each in result.items()}, indent=1))


def _measured(command: Sequence[str], environment: dict[str, str], size: int) -> Callable[[], float]:
    """Megabytes per second of the command, each time into an empty cache."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            places = {"HF_HOME": f"{folder}/hf", "XDG_CACHE_HOME": f"{folder}/cache", "XDG_DATA_HOME": f"{folder}/data"}
            began = time.monotonic()
            subprocess.run(command, env={**environment, **places}, check=True, capture_output=True)
            return size / 1e6 / (time.monotonic() - began)

    return measure


def _rounded(value: object) -> object:
    return [round(each, 1) for each in value] if isinstance(value, list) else value

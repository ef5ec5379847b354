"""A hub that holds tiny models, and a world of the test's own that asks it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tiny_models
from tests.fake_hub import FakeHub, fake_hub
from tokencli.app import World
from tokencli.world.hub import Cache, Hub
from tokencli.world.pins import Pins

TINY = "org/tiny-GGUF"
PLENTY = 1 << 40


@pytest.fixture(scope="session")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_models.write(tmp_path_factory.mktemp("tiny") / "t.gguf", weight_type="Q8_0").read_bytes()


@pytest.fixture
def tiny_hub(tiny_bytes: bytes) -> Iterator[FakeHub]:
    """org/tiny-GGUF with two quants (of one content, as far as it matters) and what else such a repository holds."""
    files = {"tiny-Q8_0.gguf": tiny_bytes, "tiny-Q4_K_M.gguf": tiny_bytes + b"\0", "mmproj-F16.gguf": b"GGUF", "README.md": b"#"}
    with fake_hub({TINY: files}) as hub:
        yield hub


@pytest.fixture
def world_of(tmp_path: Path) -> Callable[..., World]:
    def make(url: str, **fields: object) -> World:
        hub = Hub(Cache(tmp_path / "hub"), url, 1.0, sleep=lambda _: None, free=lambda _: PLENTY)
        places = {
            "cache": tmp_path / "cache",
            "own": tmp_path / "config/models.toml",
            "pins": Pins(tmp_path / "data/models.json"),
        }
        return World(**{"hub": hub, **places, **fields})

    return make

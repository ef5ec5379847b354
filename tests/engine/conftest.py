"""Models and engines for tests on the real llama.cpp: SmolLM2 from its package, and tiny generated GGUFs."""

import importlib.util
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import tiny_models
from tests.conftest import LAVAPIPE as LAVAPIPE
from tokencli.core import Done, Event, Loaded, Message, Model, Plan, Request, Sampling, Text
from tokencli.engine.client import Engine
from tokencli.engine.library import load_library
from tokencli.engine.log import LogCapture
from tokencli.world import catalogue, gguf_file


@pytest.fixture(scope="session", autouse=True)
def _library() -> None:
    """Engine tests need the library; where it is missing that is a broken installation, not a reason to skip."""
    assert importlib.util.find_spec("llama_cpp"), "llama-cpp-python is not installed: run scripts/test"


class Nowhere(io.StringIO):
    """A stream that keeps nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


KEPT: list[Any] = []  # llama.cpp keeps a pointer to the log callback for as long as the process lives


@pytest.fixture(scope="session")
def llama() -> Any:
    """The library in this process, for tests below the worker: silent, initialised once."""
    library = load_library()
    KEPT.append(LogCapture(library, Nowhere()))
    library.llama_backend_init()
    return library


@pytest.fixture(scope="session")
def smollm2() -> Model:
    path = catalogue.resolve("smollm2-135m", catalogue.read_catalogue(catalogue.data_folder()))
    return gguf_file.read_model(path, "smollm2-135m")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """Makes a tiny model (arguments of tiny_models.write), or finds it again."""
    folder = tmp_path_factory.mktemp("tiny")

    def make(kind: str = "llama", **options: object) -> Model:
        path = folder / f"{kind}-{abs(hash(repr(sorted(options.items()))))}.gguf"
        if not path.exists():
            tiny_models.write(path, kind, **{"weight_type": "Q8_0", **options})
        return gguf_file.read_model(path, kind)

    return make


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[bytes]], Model]:
    """Makes a model that answers with the given pieces, one token each."""
    folder = tmp_path_factory.mktemp("scripted")

    def make(pieces: list[bytes], **options: object) -> Model:
        path = folder / f"{len(list(folder.iterdir()))}.gguf"
        return gguf_file.read_model(tiny_models.scripted(path, pieces, **options), "scripted")

    return make


def plan_for(model: Model, **changes: object) -> Plan:
    """A plan on the CPU; tests stay off the extra buffers, which some builds crash with (FACTS: AMX)."""
    return Plan(
        **{"model": model, "backend": "cpu", "gpu_layers": 0, "context": 2048, "threads": 1, "extra_buffers": False, **changes}
    )


def ask(text: str = "Hello", *, temperature: float = 0, max_tokens: int | None = None, **options: object) -> Request:
    sampling = Sampling(temperature=temperature, seed=options.pop("seed", 7))
    return Request((Message("user", text),), sampling, max_tokens, **options)


def load(engine: Engine, plan: Plan) -> Loaded:
    *_, loaded = engine.load(plan)
    assert isinstance(loaded, Loaded)
    return loaded


def answer(events: Iterator[Event]) -> tuple[str, str, Done]:
    """The answer's text, the reasoning, and the Done event."""
    texts: dict[str, str] = {"answer": "", "reasoning": ""}
    done = None
    for event in events:
        if isinstance(event, Text):
            texts[event.kind] += event.text
        done = event
    assert isinstance(done, Done)
    return texts["answer"], texts["reasoning"], done

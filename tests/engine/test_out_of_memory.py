"""A real out-of-memory: the worker under RLIMIT_AS. It becomes an error with a hint, not a crash, and the engine serves on."""

import resource
from collections.abc import Callable

import pytest

from tests.conftest import LAVAPIPE
from tests.engine.conftest import load, plan_for
from tokencli.core import Model
from tokencli.engine.client import Engine
from tokencli.errors import OutOfMemory

GIB = 1 << 30


def limit(engine: Engine, size: int) -> None:
    resource.prlimit(engine.process_id, resource.RLIMIT_AS, (size, size))


def test_a_cache_the_process_may_not_have_is_out_of_memory(smollm2: Model) -> None:
    with Engine() as engine:
        engine.devices()
        limit(engine, 4 * GIB)
        with pytest.raises(OutOfMemory) as caught:
            load(engine, plan_for(smollm2, context=400_000))  # 8.6 GiB of KV cache
        assert caught.value.exit_code == 3
        assert "--context" in caught.value.hint
        assert load(engine, plan_for(smollm2, context=1024)).context == 1024


@pytest.mark.vulkan
def test_a_device_that_runs_out_is_out_of_memory(lavapipe: str, tiny: Callable[..., Model]) -> None:
    layers = 160  # 64 MiB of cache each: lavapipe's largest buffer is 128 MiB
    model = tiny("llama", layers=layers, context=1 << 17)
    with Engine(environment=LAVAPIPE) as engine:
        engine.devices()
        limit(engine, 8 * GIB)
        with pytest.raises(OutOfMemory):
            load(engine, plan_for(model, gpu_layers=layers + 1, device=lavapipe, context=1 << 17))

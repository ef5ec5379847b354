"""Workers that the kernel kills for their memory, in a control group of their own: the command goes on, or ends well."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.memory_group import memory_group
from tokencli import app
from tokencli.core import Event, Machine, Model, Note, Text
from tokencli.engine.client import WORKER, Engine
from tokencli.errors import EngineCrashed
from tokencli.plan.choose import Wishes
from tokencli.world.verdicts import Verdicts

FAULTY = Path(__file__).with_name("faulty_worker.py")
MIB = 1 << 20
JOIN = 'echo $$ > "$GROUP/cgroup.procs" && exec "$@"'


@pytest.fixture
def group() -> Iterator[Path]:
    with memory_group(300 * MIB) as folder:
        yield folder


@pytest.fixture
def world(tmp_path: Path, group: Path) -> Callable[..., app.World]:
    """Only the worker is in the group: what plans knows nothing of its limit, as when other programs take memory meanwhile."""

    def make(*command: str) -> app.World:
        def engine(environment: Mapping[str, str]) -> Engine:
            mark = {"GROUP": str(group), "FAULT_MARK": str(tmp_path / "mark")}
            return Engine(["sh", "-c", JOIN, "sh", *command], {**mark, **environment})

        return app.World(
            start_engine=lambda: engine({}),
            start_safer_engine=engine,
            find_verdicts=lambda: Verdicts(tmp_path / "verdicts.json", "build", "driver"),
            read_machine=lambda devices: Machine(1, 8 << 30, 8 << 30, tuple(devices)),
            backends=lambda: ("cpu", "vulkan"),
            cache=tmp_path / "cache",
        )

    return make


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    yield
    assert psutil.Process(os.getpid()).children() == []
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"mark", "verdicts.json", "cache/ghosts/.lock"}
    assert Verdicts(tmp_path / "verdicts.json", "build", "driver").forget() == 0, "a kill teaches nothing of a driver"


def run(model: Model, world: app.World, **wishes: object) -> list[Event]:
    return list(app.run(app.Question(model.file, "hi", wishes=Wishes(**wishes), max_tokens=4), world))


@pytest.mark.parametrize("stage", ["devices", "dry_run", "load", "first", "prefill", "decode"])
def test_a_worker_that_is_killed_once_costs_no_word(
    world: Callable[..., app.World], tiny: Callable[..., Model], stage: str
) -> None:
    begun = time.monotonic()
    events = run(tiny(), world(sys.executable, "-S", str(FAULTY), "gpu", f"oom@{stage}?once"), context=1024)
    assert "".join(event.text for event in events if isinstance(event, Text)) == "hello wide world"
    assert any("was killed by SIGKILL while" in event.text for event in events if isinstance(event, Note))
    assert time.monotonic() - begun < 15


def test_a_gpus_worker_that_is_always_killed_leads_to_the_cpu(
    world: Callable[..., app.World], tiny: Callable[..., Model]
) -> None:
    notes = [event.text for event in run(tiny(), world(sys.executable, "-S", str(FAULTY), "gpu", "oom@load?gpu"), context=1024)
             if isinstance(event, Note)]  # fmt: skip
    assert notes[-1].endswith("trying once more on the CPU")


def test_the_real_engine_is_killed_for_its_cache_and_that_is_one_clear_line(
    world: Callable[..., app.World], smollm2: Model
) -> None:
    begun = time.monotonic()
    with pytest.raises(EngineCrashed) as caught:
        run(smollm2, world(*WORKER), context=30_000, kv_type="f16", threads=1, gpu_layers=0)  # 660 MiB of cache
    assert caught.value.what.startswith("the engine was killed by SIGKILL while loading the model")
    assert caught.value.what.endswith("(twice in the same way)")
    assert "smaller --context" in caught.value.hint
    assert time.monotonic() - begun < 60


def test_the_real_engine_answers_where_the_group_has_room(world: Callable[..., app.World], smollm2: Model) -> None:
    events = run(smollm2, world(*WORKER), context=512, threads=1, gpu_layers=0)
    assert any(isinstance(event, Text) and event.text for event in events)

"""Starts an engine whose devices could be listed: a driver that crashes or hangs while it is looked at is left out, and said.

A backend is first tried in a safer mode. What worked is remembered for this library and driver; a list without GPUs never, but
for a hang, whose wait nobody wants twice (reports A1-09, A1-27, A1-32, A1-33).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokencli.app.ladder import asks_for_the_cpu, is_of_a_driver
from tokencli.app.world import World, is_late, probe_time
from tokencli.core import Device
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed, EngineTimeout
from tokencli.plan.choose import Wishes
from tokencli.world.load import LoadMeter

_NO_VULKAN = {"GGML_VK_VISIBLE_DEVICES": "", "VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull}
_NO_CUDA = {"CUDA_VISIBLE_DEVICES": "-1"}
AS_IT_IS = ""
NO_MATRICES = "without cooperative matrices"
NO_GPU = "without any GPU"
# Environment variables of ggml-vulkan.cpp, the Vulkan loader and CUDA.
MODES: Mapping[str, Mapping[str, str]] = {
    AS_IT_IS: {},
    NO_MATRICES: {"GGML_VK_DISABLE_COOPMAT": "1", "GGML_VK_DISABLE_COOPMAT2": "1"},
    "without Vulkan": _NO_VULKAN,
    "without CUDA": _NO_CUDA,
    NO_GPU: {**_NO_VULKAN, **_NO_CUDA, "HIP_VISIBLE_DEVICES": "-1"},
}
FORGET = "tokencli doctor --forget tries all of it again"


@dataclass(frozen=True, slots=True)
class Started:
    """An engine that has listed its devices, the mode it took, what there is to say of it, and what has seen since its start
    how busy the cores are. Close the engine later.
    """

    engine: Engine
    devices: tuple[Device, ...]
    mode: str
    notes: tuple[str, ...]
    meter: LoadMeter


def started(
    world: World, wishes: Wishes | None = None, deadline: float | None = None, mode: str = AS_IT_IS, *, afresh: bool = False
) -> Started:
    """An engine in the first mode, from `mode` on, in which it lists its devices. Raises what the last one failed with.

    A plan for the CPU wakes no GPU that sleeps. `afresh`: whatever is remembered.
    """
    if wishes and asks_for_the_cpu(wishes) and world.gpus_asleep():
        mode = NO_GPU
    verdicts = world.find_verdicts()
    known = verdicts.mode()
    remembered = known if mode == AS_IT_IS and known in MODES and not afresh else AS_IT_IS
    notes = [f"{remembered}: this driver failed otherwise ({FORGET})"] if remembered else []
    hung = False
    failure: EngineCrashed | EngineTimeout | None = None
    for each in _modes(remembered or mode, world):
        engine = world.engine(MODES[each])
        meter = world.start_meter(engine.process_id)
        try:
            devices = engine.devices(probe_time(deadline, world))
        except (EngineCrashed, EngineTimeout) as error:
            engine.close()
            if is_late(deadline, world):
                raise
            failure, hung = error, hung or isinstance(error, EngineTimeout)
            notes.append(error.what)
            continue
        except BaseException:
            engine.close()
            raise
        if failure:
            notes.append(f"going on {each}")
            if is_of_a_driver(failure) and (hung or any(device.kind != "cpu" for device in devices)):
                verdicts.remember_mode(each)
        return Started(engine, tuple(devices), each, tuple(notes), meter)
    assert failure
    raise failure


def _modes(first: str, world: World) -> Iterator[str]:
    """The mode asked for, then safer ones, of the backends that there are."""
    yield first
    if first in (NO_GPU, "without Vulkan", "without CUDA"):
        if first != NO_GPU:
            yield NO_GPU
        return
    gpus = [each for each in world.backends() or () if each != "cpu"]
    if "vulkan" in gpus:
        if first != NO_MATRICES:
            yield NO_MATRICES
        yield "without Vulkan"
    if "cuda" in gpus and len(gpus) > 1:
        yield "without CUDA"
    if gpus and gpus != ["vulkan"]:
        yield NO_GPU

"""Plans where no engine is at hand for dry runs: for lists, and for a quant to download. Prints nothing.

Compute buffers are a rule of thumb here; what is run is planned anew with llama.cpp's own figures.
"""

from tokencli.app.isolation import started
from tokencli.app.world import World
from tokencli.core import DeviceBytes, Machine, Plan
from tokencli.errors import EngineError
from tokencli.plan.planner import Planner
from tokencli.plan.sizes import ModelFile
from tokencli.world import settings

_COMPUTE = 300 << 20  # llama.cpp's buffers for an 8B at 4096 tokens are 100 to 300 MiB (FACTS)


def this_machine(world: World) -> Machine:
    """This computer; without its devices where the engine does not start."""
    try:
        begun = started(world)
        with begun.engine:
            return world.read_machine(list(begun.devices))
    except EngineError:
        return world.read_machine([])


def rough_planner(target: ModelFile, machine: Machine, world: World) -> Planner:
    return Planner(target, machine, settings.read_profiles(world.data), _rough, speeds=settings.read_speeds(world.data))


def _rough(plan: Plan) -> tuple[DeviceBytes, ...]:
    return (DeviceBytes(plan.device or "CPU", "gpu", compute=_COMPUTE),)

"""The story of each command: wires the world to the pure decisions and to the engine. Prints nothing."""

from tokencli.app.answer import Question, random_seed, run
from tokencli.app.opened import as_loaded
from tokencli.app.world import World

__all__ = ["Question", "World", "as_loaded", "random_seed", "run"]

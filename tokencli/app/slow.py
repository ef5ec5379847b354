"""Looks at the computer where an answer was much slower than predicted, and says what may have done it."""

from tokencli.app.opened import Opened
from tokencli.app.world import World
from tokencli.core import Stats
from tokencli.plan.slow import is_far_below, slower_than_predicted


def why_slow(opened: Opened, stats: Stats, world: World) -> str | None:
    """None where it was as fast as could be expected, or nothing was predicted. Takes a moment otherwise."""
    if not is_far_below(opened.plan, stats):
        return None
    return slower_than_predicted(opened.plan, stats, opened.machine, world.read_strain(opened.engine.process_id))

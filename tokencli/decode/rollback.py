"""How far back a model's memory can be cut and still be right. Pure: llama.cpp itself says True to cuts that leave a wrong
state (FACTS, Speculation), so the engine asks here first.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What one sequence's memory can tell. `length` tokens are in it, those from `call_start` on came in the last decode call.

    `window` and `oldest`: the sliding window in tokens and the oldest position its cache still holds (None without one).
    `recurrent`: some layers keep a state instead of a cache, with `snapshots` earlier states to return to.
    """

    length: int
    call_start: int
    window: int | None = None
    oldest: int | None = None
    recurrent: bool = False
    snapshots: int = 0

    @property
    def floor(self) -> int:
        """The shortest length that a cut reaches exactly.

        A sliding window needs the `window` tokens before the cut still there. A recurrent state goes back only inside the last
        decode call, one of its tokens kept, and at most as many tokens as there are snapshots.
        """
        floor = 0
        if self.window is not None and self.oldest:
            floor = self.window + self.oldest if self.oldest > 0 else self.length
        if self.recurrent:
            floor = max(floor, self.call_start + 1, self.length - self.snapshots)
        return min(floor, self.length)

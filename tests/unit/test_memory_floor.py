"""How far back a memory can be cut: pure arithmetic behind tests/engine/test_rollback.py."""

import pytest

from tokencli.decode.rollback import MemoryState


@pytest.mark.parametrize(
    ("state", "floor"),
    [
        (MemoryState(100, 90), 0),
        (MemoryState(100, 90, window=32, oldest=0), 0),
        (MemoryState(400, 390, window=32, oldest=100), 132),
        (MemoryState(400, 390, window=32, oldest=-1), 400),
        (MemoryState(100, 90, recurrent=True, snapshots=0), 100),
        (MemoryState(100, 90, recurrent=True, snapshots=4), 96),
        (MemoryState(100, 98, recurrent=True, snapshots=4), 99),
        (MemoryState(400, 395, window=32, oldest=380, recurrent=True, snapshots=8), 400),
        (MemoryState(0, 0, recurrent=True, snapshots=4), 0),
    ],
)
def test_floor(state: MemoryState, floor: int) -> None:
    assert state.floor == floor

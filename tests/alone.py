"""Tests marked `alone` have the processor for themselves: while one runs, the other processes of the suite wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path

import pytest


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@contextmanager
def room_for(item: pytest.Item) -> Iterator[None]:
    """Wait for one's turn: many at a time, or one."""
    if not hasattr(item.config, "workerinput"):  # one test after the other
        yield
        return
    folder = Path(item.config.getoption("basetemp")).parent  # of the run, where each process has one of its own
    kind = LOCK_EX if is_alone(item) else LOCK_SH
    with (folder / "gate").open("w") as gate, (folder / "room").open("w") as room:
        flock(gate, kind)  # whoever waits for the room alone holds the gate: nobody else goes in meanwhile
        flock(room, kind)
        flock(gate, LOCK_UN)
        try:
            yield
        finally:
            flock(room, LOCK_UN)  # to close it would not do where a child that was forked lives on

"""Tests marked `alone` have the machine to themselves: the other processes of the test run wait."""

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
    """Wait until this test may run: many at a time, or one alone."""
    if not hasattr(item.config, "workerinput"):  # tests run one after another
        yield
        return
    folder = Path(item.config.getoption("basetemp")).parent  # shared by the processes of the run
    kind = LOCK_EX if is_alone(item) else LOCK_SH
    with (folder / "gate").open("w") as gate, (folder / "room").open("w") as room:
        flock(gate, kind)  # a waiting `alone` test holds the gate, so that no further test starts
        flock(room, kind)
        flock(gate, LOCK_UN)
        try:
            yield
        finally:
            flock(room, LOCK_UN)  # closing is not enough: a forked child may keep the file open

"""CPU time of processes, as Linux counts it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def seconds_of_tree(pid: int) -> float:
    """Return the CPU seconds of a process, its living children and its ended children."""
    return sum(_ticks(process, with_ended=True) for process in [pid, *children_of(pid)]) / TICKS_PER_SECOND


def children_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                parents[int(path.name)] = int(_fields(int(path.name))[1])
    tree = [pid]
    for parent_pid in tree:
        tree += [child for child, parent in parents.items() if parent == parent_pid]
    return tree[1:]


def _ticks(pid: int, *, with_ended: bool) -> int:
    with suppress(OSError):
        return sum(int(ticks) for ticks in _fields(pid)[11 : 15 if with_ended else 13])
    return 0


def _fields(pid: int) -> list[str]:
    """Read /proc/<pid>/stat from its third field on."""
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()

"""Child processes that bodies have started: they end with their executor."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

ROUNDS = 20  # a process may start another while it is killed
ROUND_SECONDS = 0.01


def end_child_processes() -> None:
    """Kill the children of this process, and theirs, where /proc shows them. Nothing waits for their work any more."""
    for _ in range(ROUNDS):
        if not (pids := descendants(os.getpid())):
            return
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended, or is not ours to kill
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_SECONDS)


def end_group(leader: int) -> None:
    """Kill what is left of the process group of a child that has ended."""
    with contextlib.suppress(OSError):  # nothing is left
        os.killpg(leader, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes below one that have not ended; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            state, parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    pids, parents = [], [pid]
    while parents:
        below = children.get(parents.pop(), [])
        pids += below
        parents += below
    return pids

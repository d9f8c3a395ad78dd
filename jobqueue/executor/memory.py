"""How much memory a process uses."""

from __future__ import annotations

import os
import sys

MIB = 1_048_576


def resident_mib(pid: int | None = None) -> float:
    """
    Return the resident memory of a process in MiB. None: of this one. Raises OSError if it has ended.

    Where there is no /proc, as on macOS, return the most that this process has ever used, and 0 for another one.
    """
    if sys.platform != "linux":
        import resource  # Windows has none

        return 0.0 if pid is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    with open(f"/proc/{'self' if pid is None else pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB

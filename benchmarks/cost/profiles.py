"""Where the cost is: CPU time of this package's functions, and instructions of PostgreSQL's."""

from __future__ import annotations

import cProfile
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from benchmarks.cost.callgrind import instructions
from benchmarks.cost.calls import PACKAGE, name_of
from benchmarks.cost.server import Server

LINE = re.compile(r"^ *([\d,]+) \(.*?\)  \?\?\?:(\S+)")
ENTRIES = 60  # of each list
AROUND = 0.99  # of all instructions: a function with more only contains the others


class ProfileMeter:
    """
    Measures CPU microseconds of each function, with what it calls. These depend on the machine and on its load.

    It needs a Python below 3.12. Later ones have one profiler for all threads.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def of(self, act: Callable[[], object], name: str) -> dict[str, int]:
        profiles: list[cProfile.Profile] = []

        def start(*event: Any) -> None:
            profiles.append(cProfile.Profile(time.thread_time_ns, 1e-3))
            profiles[-1].enable()

        self._server.mark()
        threading.setprofile(start)
        start()
        act()
        profiles[0].disable()
        threading.setprofile(None)
        times: Counter[str] = Counter()
        for profile in profiles:
            for entry in profile.getstats():
                if isinstance(entry.code, CodeType) and entry.code.co_filename.startswith(PACKAGE):
                    times[name_of(entry.code)] += int(entry.totaltime)
        return dict(times)


def is_supported() -> bool:
    return sys.version_info < (3, 12)


def functions_of_server(file: Path) -> Iterator[tuple[str, float]]:
    """Yield functions of a session, and the part of its instructions that they and what they call executed."""
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    total = instructions(file)
    for line in done.stdout.splitlines():
        if (match := LINE.match(line)) and "'" not in match[2]:
            part = int(match[1].replace(",", "")) / total
            if part < AROUND:
                yield match[2], part

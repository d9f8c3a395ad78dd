"""
The measured work: enqueue tasks one by one, enqueue many, drain them. python -m benchmarks.cost.work

Each piece of work is done for two numbers of tasks, and the difference is what these tasks cost: it contains no start
of a program, no connection and no first batch.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import django

from benchmarks.cost import callgrind
from benchmarks.cost.profiles import ProfileMeter
from benchmarks.cost.server import Server
from tools.postgres import Cluster

Totals = dict[str, int]
LONG = 1000.0
TICK = 1e-5  # seconds that pass with each look at the clock
BATCH = 400  # tasks of a claim, as in busy executors


class Meter(Protocol):
    """Counts what a piece of work does."""

    def of(self, act: Callable[[], object], name: str) -> Totals: ...


class CounterMeter:
    """What PostgreSQL and Python count."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def of(self, act: Callable[[], object], name: str) -> Totals:
        from benchmarks.cost.calls import Calls

        mark = self._server.mark()
        with Calls() as calls:
            act()
        functions = calls.by_function()
        return {
            "calls of Python functions": sum(functions.values()),
            "calls of C functions": calls.of_c,
            **self._server.counts_since(mark),
            **{f"function {name}": count for name, count in functions.items()},
        }


class InstructionMeter:
    """CPU instructions of this process, and of PostgreSQL's sessions. The file of the busiest session gets a name."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._callgrind = callgrind.Callgrind(folder)

    def of(self, act: Callable[[], object], name: str) -> Totals:
        mark = self._server.mark()
        self._callgrind.start()
        act()
        of_client = self._callgrind.stop()
        self._server.mark()
        sessions = {pid: callgrind.of_session(self._folder, pid) for pid in self._server.sessions_since(mark)}
        busiest = max(sessions, key=lambda pid: sessions[pid])
        callgrind.file_of(self._folder, busiest).rename(self._folder / name)
        return {"instructions of Python": of_client, "instructions of PostgreSQL": sum(sessions.values())}


def make_repeatable() -> None:
    """
    Let batches have the same size in each run, and do nothing that depends on how long they take.

    A thread runs until it waits. So a worker runs all claimed tasks before the loop commits their outcomes. Time passes
    with each look at the clock: under valgrind a task takes a hundred times as long.
    """
    from jobqueue.api import notifications
    from jobqueue.executor import watchdog
    from jobqueue.executor.health import status
    from jobqueue.executor.pools import base

    sys.setswitchinterval(LONG)
    time.monotonic = itertools.count(time.monotonic(), TICK).__next__
    base.MAX_PREFETCH, base.PREFETCH_SECONDS = BATCH, LONG
    watchdog.CHECK_SECONDS = status.REPORT_SECONDS = LONG
    notifications.MIN_INTERVAL_SECONDS = 0.0  # each enqueue() notifies
    gc.freeze()  # as run_executors does


@contextmanager
def logging_to_nowhere(level: int) -> Iterator[None]:
    """Log as `run_executors` does, into /dev/null."""
    from django.core.management.color import no_style

    from jobqueue.executor.telemetry.console_log import ConsoleHandler, TextFormatter
    from jobqueue.management.commands.run_executors import log_only_to

    with open(os.devnull, "w") as stream, ExitStack() as undo:
        handler = ConsoleHandler(TextFormatter(no_style()), stream)
        undo.callback(handler.flush)
        log_only_to(handler, logging.getLogger("jobqueue"), level, undo)
        yield


def enqueue(tasks: int) -> None:
    from benchmarks.tasks import noop

    for number in range(tasks):
        noop.enqueue(number)


def enqueue_many(tasks: int, name: str = "noop") -> None:
    from benchmarks import tasks as declared

    getattr(declared, name).enqueue_many([((number,), {}) for number in range(tasks)])


def drain(tasks: int, level: int = logging.INFO) -> None:
    from jobqueue.executor.process import ExecutorProcess
    from jobqueue.executor.settings import ExecutorSettings

    with logging_to_nowhere(level):
        ExecutorProcess(ExecutorSettings(threads=1, burst=True)).run()


def drain_without_log(tasks: int) -> None:
    drain(tasks, logging.WARNING)


def drain_async(tasks: int) -> None:
    drain(tasks)


DRAINED = {drain: "noop", drain_without_log: "noop", drain_async: "noop_async"}  # what each piece of work drains


def measure(meter: Meter, few: int, many: int) -> dict[str, dict[str, float]]:
    """Return what each piece of work costs, for each task."""
    from django.db import connection

    from benchmarks.cluster import empty
    from jobqueue.models import Task

    enqueue(20)  # what is done once in a process
    enqueue_many(20)
    enqueue_many(20, "noop_async")
    drain(60)
    cost = {}
    steps = [(enqueue, 4), (enqueue_many, 1), (drain, 1), (enqueue_many, 1), (drain_without_log, 1), (drain_async, 1)]
    for step, share in steps:
        totals = []
        for tasks in (few, many):
            empty("jobqueue_task")
            if step in DRAINED:
                enqueue_many(tasks, DRAINED[step])
            connection.close()

            def act(count: int = tasks // share, step: Callable[[int], None] = step) -> None:
                step(count)
                connection.close()

            gc.collect()  # so that its next runs fall on the same tasks
            totals.append(meter.of(act, step.__name__))
            if step in DRAINED:
                assert Task.objects.filter(status="SUCCESSFUL").count() == tasks
        difference = (many - few) // share
        less, more = totals
        cost[step.__name__] = {name: (more[name] - less.get(name, 0)) / difference for name in more}
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.work", description=__doc__)
    parser.add_argument("data", type=Path, help="the data folder of a running PostgreSQL with our tables")
    parser.add_argument("few", type=int)
    parser.add_argument("many", type=int)
    parser.add_argument(
        "--callgrind", type=Path, metavar="FOLDER", help="count instructions, which callgrind writes there"
    )
    parser.add_argument("--profile", action="store_true", help="measure the CPU time of each function instead")
    options = parser.parse_args()
    django.setup()
    server = Server(Cluster(options.data))
    make_repeatable()
    meter: Meter
    if options.profile:
        meter = ProfileMeter(server)
    else:
        meter = CounterMeter(server) if options.callgrind is None else InstructionMeter(server, options.callgrind)
    print(json.dumps(measure(meter, options.few, options.many)))


if __name__ == "__main__":
    main()

"""
Count what a plain task costs: python -m benchmarks.counts

Times on a shared machine differ by a third from run to run, and hide that a task becomes a little more expensive with
each change. Counts repeat. tests/executor/test_counts.py compares the first of them with the figure of the last commit.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import jobqueue

PACKAGE = str(Path(jobqueue.__file__).parent) + os.sep
TASKS = 5000
SETTLE_SECONDS = 1.5  # until the server has published its counters
COUNTERS = """
SELECT (SELECT wal_bytes FROM pg_stat_wal), xact_commit, (SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = %s),
    (SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s)
FROM pg_stat_database WHERE datname = current_database()
"""


class Calls:
    """
    Counts calls in the threads that start between __enter__() and __exit__().

    Those of this package's functions, and those of other functions by this package's code. What Django and psycopg call
    inside is not counted, because it differs from version to version. Lists, because a list can be appended to by
    several threads.
    """

    def __init__(self) -> None:
        self._python: list[CodeType] = []
        self._c: list[str] = []
        self._is_ours: dict[CodeType, bool] = {}
        self.statements = 0

    def __enter__(self) -> Calls:
        threading.setprofile(self._on_event)
        return self

    def __exit__(self, *exc_info: object) -> None:
        threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and self._owns(frame):
            self._c.append(arg.__qualname__ if isinstance(arg, BuiltinFunctionType) else type(arg).__qualname__)
        elif event == "call":
            code = frame.f_code
            if self._owns(frame) or (frame.f_back is not None and self._owns(frame.f_back)):
                self._python.append(code)
            elif (code.co_filename.rpartition(os.sep)[2], code.co_name) == ("cursor.py", "execute"):
                self.statements += 1

    def _owns(self, frame: FrameType) -> bool:
        code = frame.f_code
        if (is_ours := self._is_ours.get(code)) is None:
            is_ours = self._is_ours[code] = code.co_filename.startswith(PACKAGE)
        return is_ours

    def per_task(self, tasks: int) -> dict[str, int]:
        """
        Return how often each Python function was called for each task.

        A function that is called for each batch has a share below one half. It is left out: the number of batches
        differs from run to run.
        """
        calls = {code: round(count / tasks) for code, count in Counter(self._python).items()}
        return {name_of(code): count for code, count in sorted(calls.items(), key=lambda item: -item[1]) if count}

    def c_per_task(self, tasks: int) -> int:
        return sum(round(count / tasks) for count in Counter(self._c).values())


def name_of(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno} {code.co_name}"


@contextmanager
def logging_to_nowhere(level: int) -> Iterator[None]:
    """Log as `run_executors` does, into /dev/null."""
    from django.core.management.color import no_style

    from jobqueue.executor.telemetry.console_log import ConsoleHandler, TextFormatter

    logger = logging.getLogger("jobqueue")
    with open(os.devnull, "w") as stream:
        handler = ConsoleHandler(TextFormatter(no_style()), stream)
        logger.addHandler(handler)
        logger.setLevel(level)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            handler.flush()


def measured(act: Callable[[], object]) -> dict[str, float]:
    """Return what the server counted while something was done, for each of the tasks."""
    before = counters()
    act()
    flush()
    time.sleep(SETTLE_SECONDS)
    names = ("WAL bytes", "transactions", "row versions written", "of these HOT")
    return {name: float(now - then) / TASKS for name, now, then in zip(names, counters(), before, strict=True)}


def flush() -> None:
    """Let this session publish its counters."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")


def counters() -> tuple[Any, ...]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(COUNTERS, ["jobqueue_task"] * 2)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


def drain() -> None:
    from jobqueue.executor.process import ExecutorProcess
    from jobqueue.executor.settings import ExecutorSettings

    ExecutorProcess(ExecutorSettings(threads=1, burst=True)).run()


def count(level: int) -> tuple[dict[str, float], dict[str, int]]:
    """Drain plain tasks. Return all counts, and the calls of each function."""
    from benchmarks.cluster import empty
    from benchmarks.tasks import noop

    empty("jobqueue_task")
    enqueued = measured(lambda: noop.enqueue_many([((number,), {}) for number in range(TASKS)]))
    with Calls() as calls, logging_to_nowhere(level):
        drained = measured(drain)
    functions = calls.per_task(TASKS)
    counts: dict[str, float] = {
        "calls of Python functions": sum(functions.values()),
        "calls of C functions": calls.c_per_task(TASKS),
        "statements": calls.statements / TASKS,
        **drained,
        "WAL bytes of enqueue_many()": enqueued["WAL bytes"],
    }
    return counts, functions


def main() -> None:
    from benchmarks.cluster import prepared_cluster

    with prepared_cluster():
        quiet, functions = count(logging.WARNING)
        if "--calls" in sys.argv:
            print(json.dumps(functions))
            return
        logged, _ = count(logging.INFO)
    print("| for each plain task | log off | log on |\n|---|---:|---:|")
    for name in quiet:
        print(f"| {name} | {quiet[name]:,.4g} | {logged[name]:,.4g} |")
    print("\nCalls of Python functions, log off:\n")
    for name, calls in functions.items():
        print(f"{calls:4} {name}")


if __name__ == "__main__":
    main()

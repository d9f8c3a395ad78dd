"""An executor in a thread of the test's process, and how to wait for what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import pytest
from django.db import connections, transaction

from jobqueue.engine import engine_for
from jobqueue.executor.loop import ExecutorLoop
from jobqueue.executor.process import ExecutorProcess
from jobqueue.executor.running.attempt import ExecutorIdentity, RunningTask
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.models import Task
from jobqueue.values.records import ClaimedTask
from jobqueue.values.states import FINAL, Status
from tests.waiting import DEADLINE_SECONDS, wait_until


def row_of(result: Any) -> Task:
    """Read the row of an enqueued task."""
    return Task.objects.using(database_of(result)).get(pk=result.id)


def database_of(result: Any) -> str:
    return "sqlite" if result.backend == "sqlite" else "default"


def wait_for_status(result: Any, status: Status, seconds: float = DEADLINE_SECONDS) -> Task:
    """Wait until the task has entered a state. Fail if it has ended in another one."""

    def row_with_status() -> Task | None:
        row = row_of(result)
        if row.status != status and row.status in FINAL:
            raise AssertionError(f"{row.task_type} ended {row.status}: {row.errors}")
        return row if row.status == status else None

    return wait_until(row_with_status, f"{status} of {result.task.name}", seconds)


class Running:
    """An executor that runs until its end, or until stop()."""

    def __init__(self, **settings: Any) -> None:
        self.is_ready = threading.Event()
        self.process = ExecutorProcess(ExecutorSettings(**settings), on_ready=self.is_ready.set)
        self.exit_code: int | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="executor-under-test", daemon=True)

    @property
    def loop(self) -> ExecutorLoop:
        return self.process.loop

    @property
    def running_tasks(self) -> dict[Any, Any]:
        return self.process.loop.running_tasks.snapshot()

    def start(self) -> Running:
        self._thread.start()
        assert self.is_ready.wait(DEADLINE_SECONDS)
        if self._error is not None:
            raise self._error
        return self

    def _run(self) -> None:
        try:
            self.exit_code = self.process.run()
        except Exception as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error
            self.is_ready.set()  # start() waits for it
        finally:
            connections.close_all()

    def join(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for the end. Return the exit code."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the executor did not end"
        assert self.loop.failure is None, self.loop.failure
        assert self.exit_code is not None
        return self.exit_code

    def stop(self) -> int:
        self.process.stop()
        return self.join()


on_postgresql = pytest.mark.django_db(transaction=True)


def on_both_databases(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on PostgreSQL and on SQLite; it takes the alias of the backend."""
    run: Any = pytest.mark.parametrize("backend", ["default", "sqlite"])(test)
    mark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
    return cast("Callable[..., None]", mark(run))


Start = Callable[..., Running]
Burst = Callable[..., Running]


class Gate:
    """Where bodies wait for a test, and a test for bodies."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.arrived: list[Any] = []
        self.is_open = threading.Event()

    def arrive(self, who: Any = None) -> None:
        with self._condition:
            self.arrived.append(who)
            self._condition.notify_all()

    def pass_through(self, who: Any = None) -> None:
        """Report the arrival of a body, and wait until the test opens the gate."""
        self.arrive(who)
        assert self.is_open.wait(DEADLINE_SECONDS)

    def wait_for(self, count: int = 1, seconds: float = DEADLINE_SECONDS) -> list[Any]:
        """Wait for so many arrivals. Return all of them."""
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.arrived) >= count, seconds), (
                f"{len(self.arrived)} of {count} arrived"
            )
            return list(self.arrived)

    def open(self) -> None:
        self.is_open.set()


class Gates:
    """One gate for each name. A task gets the name as an argument."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Gate:
        with self._lock:
            return self._gates.setdefault(name, Gate())

    def open_all(self) -> None:
        with self._lock:
            for gate in self._gates.values():
                gate.open()

    def clear(self) -> None:
        self.open_all()
        with self._lock:
            self._gates = {}


gates = Gates()


def wait_for_turns(running: Running) -> None:
    """Wait for some turns of the loop, in which it could have done what it must not do."""
    turns = running.loop.turns
    wait_until(lambda: running.loop.turns > turns + 3)


@contextmanager
def connected(receiver: Callable[..., None], *signals: Any) -> Iterator[None]:
    """Let a function receive signals."""
    for signal in signals:
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal in signals:
            signal.disconnect(receiver)


def in_line(start: Start) -> tuple[Running, Any]:
    """Start an executor with one thread. Return a task that waits in its buffer behind a long one."""
    # Imported late: the tasks wait at our gates.
    from tests.executor import tasks

    running = start(threads=1)
    tasks.add.enqueue_many([((number,), {}) for number in range(50)])
    wait_until(lambda: running.loop.outcomes.counts.finished == 50)  # it expects short tasks now
    with transaction.atomic():
        tasks.wait_at.using(priority=1).enqueue("long")
        result = tasks.wait_at.enqueue("in line")
    gates["long"].wait_for()
    assert len(running.running_tasks) == 2
    return running, result


def make_running(**changes: Any) -> RunningTask:
    """Make a running task without a database."""
    identity = ExecutorIdentity(engine=engine_for("default"), executor_id=uuid4(), name="tests")
    return RunningTask(make_claim(**changes), identity)


def make_claim(**changes: Any) -> ClaimedTask:
    """Make a claimed task without a database."""
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "id": uuid4(),
        "task_type": "tests.executor.tasks.add",
        "queue_name": "default",
        "priority": 0,
        "args": "[1]",
        "kwargs": "{}",
        "inner_state": None,
        "options": "{}",
        "metadata": "{}",
        "errors": "[]",
        "worker_ids": "[]",
        "parent_id": None,
        "key": None,
        "claim_number": 1,
        "attempts": 0,
        "max_attempts": 3,
        "polls": 0,
        "executor_losses": 0,
        "rank": now,
        "enqueued_at": now,
        "started_at": now,
        "claimed_at": now,
        "wait_seconds": 0.0,
        "is_expired": False,
    }
    return ClaimedTask(**values | changes)

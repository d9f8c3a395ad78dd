"""
Repeat a scenario with a crash at each write, and compare the results.

The process of an executor seems to end at one statement: its open transaction is rolled back, and nothing of it reaches
the database any more. Then another executor rescues the task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import F, Min

from jobqueue.api.messages import send
from jobqueue.api.tasks import cancel
from jobqueue.conf.compat import TaskResult
from jobqueue.declarations.actor import Actor
from jobqueue.declarations.function import FunctionTask
from jobqueue.engine import Engine, engine_for
from jobqueue.models import Heartbeat, JournalEntry, Task
from jobqueue.testing.queue import advance, run_until_idle
from jobqueue.values.journal import OPEN
from jobqueue.values.states import WAITING, Status

MAX_WAITS = 10_000  # of one scenario
MAX_LOOKS = 3  # at messages that a workflow has left unread
LOCKS = re.compile(r"\bFOR\s+(NO\s+KEY\s+)?UPDATE\b", re.IGNORECASE)
WRITES = re.compile(r"\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\b", re.IGNORECASE)
SAVEPOINTS = re.compile(r"\s*(SAVEPOINT|RELEASE|ROLLBACK)\b(?:.*\bSAVEPOINT\s+\"?([^\"\s]+))?", re.IGNORECASE)
STATEMENT_CHARACTERS = 200  # of a statement in a message

Step = Callable[["TaskResult[..., Any]"], object]


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happens from outside, so long after the task was enqueued."""

    after: timedelta
    step: Step


class at:
    """
    A moment of a script: `at(days=3).send(Shipped("T1"))`.

    parts: of a timedelta, from the enqueue of the task.
    """

    def __init__(self, **parts: float) -> None:
        self._after = timedelta(**parts)

    def send(self, body: Any) -> Moment:
        """Send a message to the task."""
        return Moment(self._after, lambda result: send(result.id, body, backend=result.backend))

    def cancel(self) -> Moment:
        """Cancel the task."""
        return Moment(self._after, lambda result: cancel(result.id, backend=result.backend))

    def call(self, function: Step) -> Moment:
        """Call a function with the task's result."""
        return Moment(self._after, function)


def assert_crash_safe(
    workflow: FunctionTask[..., Any] | type[Actor[Any]],
    args: Sequence[Any] = (),
    script: Sequence[Moment] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    check: Callable[[], object] = lambda: None,
) -> int:
    """
    Run a task without a crash, and again with a crash before and after each write. Return the number of crashes.

    Time passes by itself until the task waits for nothing that comes. Each run happens in a transaction that is rolled
    back. Raises AssertionError if a run with a crash ends with another status, result, error or journal, or with other
    tasks of other statuses.
    script: what comes from outside, such as `[at(days=3).send(Shipped("T1")), at(days=4).cancel()]`.
    check: called at the end of each run. It returns what must be equal, such as `Refund.objects.count`.
    """
    if not isinstance(workflow, FunctionTask):
        workflow = workflow.task
    scenario = _Scenario(workflow, tuple(args), dict(kwargs or {}), script, check)
    expected, points = scenario.run(None)
    for point in points:
        seen, _ = scenario.run(point)
        if problems := list(_differences(expected, seen)):
            raise AssertionError(f"With a crash {point}:\n" + "\n".join(problems))
    return len(points)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The results of a run."""

    status: str  # the final one of the task
    result: Any  # of the task, as JSON
    error: str  # its class and message; "" without one
    journal: Sequence[tuple[str, str, str]]  # name, kind and status of each entry
    tasks: Mapping[tuple[str, str], int]  # how many of each type and status
    checked: object  # what the caller's check returned


def _differences(expected: _Seen, seen: _Seen) -> Iterator[str]:
    for name in _Seen.__slots__:
        before, after = getattr(expected, name), getattr(seen, name)
        if before != after:
            yield f"{name}: {after!r:.2000}\n  without a crash: {before!r:.2000}"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A statement, by its number, at which the process ends."""

    number: int
    is_after: bool
    statement: str

    def __str__(self) -> str:
        return f"{'after' if self.is_after else 'before'} write {self.number}: {self.statement}"


@dataclass(frozen=True, slots=True)
class _Scenario:
    task: FunctionTask[..., Any]  # that is enqueued
    args: tuple[Any, ...]  # of the task
    kwargs: dict[str, Any]  # of the task
    script: Sequence[Moment]  # what happens from outside
    check: Callable[[], object]  # of the caller, called at the end

    def run(self, point: CrashPoint | None) -> tuple[_Seen, list[CrashPoint]]:
        engine = engine_for(self.task.backend)
        process = CrashingExecutor(engine, [] if point is None else [(point.number, point.is_after)])
        with transaction.atomic(using=engine.database):
            before = set(engine.db.tasks.values_list("pk", flat=True))
            result = self.task.enqueue(*self.args, **self.kwargs)
            play(process, [(moment.after, partial(moment.step, result)) for moment in self.script])
            seen = self._look(engine, UUID(result.id), before)
            transaction.set_rollback(True, using=engine.database)
        return seen, process.points

    def _look(self, engine: Engine, pk: UUID, before: set[UUID]) -> _Seen:
        row = engine.db.tasks.get(pk=pk)
        error = row.errors[-1] if row.errors and row.status == Status.FAILED else {}
        new = engine.db.tasks.exclude(pk__in=before).values_list("task_type", "status")
        return _Seen(
            status=str(row.status),
            result=row.return_value,
            error=f"{error.get('exception_class_path')}: {error.get('message')}" if error else "",
            journal=_read_journal(row),
            tasks=Counter((task_type, str(status)) for task_type, status in new),
            checked=self.check(),
        )


def _read_journal(row: Task) -> Sequence[tuple[str, str, str]]:
    return sorted(row.journal.values_list("name", "kind", "status"))


def play(process: CrashingExecutor, script: Sequence[tuple[timedelta, Callable[[], object]]]) -> None:
    """Run tasks and let time pass until nothing is due. script: what happens then, by the time since the start."""
    engine, left = process.engine, sorted(script, key=lambda moment: moment[0])
    passed = timedelta()
    for _ in range(MAX_WAITS):
        process.run()
        due = next_due(engine)
        if left and (due is None or left[0][0] - passed <= due):
            after, happen = left.pop(0)
            process.pass_time(after - passed)
            passed = max(passed, after)
            happen()
        elif due is not None:
            process.pass_time(due)
            passed += due
        else:
            return
    raise AssertionError(f"The task waited {MAX_WAITS} times. Does it never end?")


def next_due(engine: Engine) -> timedelta | None:
    """
    Return the time until the next task is due; None if none is.

    A workflow that has left a message unread looks for newer ones again and again, which ends no wait: after some of
    these looks, it is due when its wait ends.
    """
    waiting = engine.db.tasks.filter(status__in=WAITING)
    looking = waiting.filter(status=Status.SUSPENDED, unread_polls__gt=MAX_LOOKS, journal__isnull=False).values("pk")
    waits = JournalEntry.objects.using(engine.database).filter(task_id__in=looking, status__in=OPEN)
    times = [
        waiting.exclude(pk__in=looking).aggregate(at=Min("wake_at"))["at"],
        waits.aggregate(at=Min("due_at"))["at"],
    ]
    ahead = [max(time - engine.db.now(), timedelta()) for time in times if time is not None]
    return min(ahead, default=None)


class ProcessEnd(BaseException):
    """The process has ended."""


@dataclass(eq=False)
class CrashingExecutor:
    """An executor whose process ends at some of its statements. Another executor then rescues its tasks."""

    engine: Engine  # of the backend
    crashes: Sequence[tuple[int, bool]] = ()  # numbers of writes, and whether the process ends after them
    limit: int = 1000  # polls between two waits
    points: list[CrashPoint] = field(default_factory=list)  # each write that it could end at
    crashed: int = 0  # processes that have ended
    _number: int = 0  # of the last write
    _is_dead: bool = False  # the process has ended, and its statements do nothing
    _outermost: str = ""  # the savepoint of the open transaction
    _base: int = 0  # savepoints of the caller

    def run(self) -> None:
        """Run tasks until none is due, by as many processes as it takes."""
        while True:
            try:
                with self._watched():
                    self.work()
                return
            except ProcessEnd:
                self.crashed += 1
                rescue(self.engine)

    def work(self) -> None:
        """Run tasks until none is due."""
        run_until_idle(backend=self.engine.alias, limit=self.limit)

    def pass_time(self, time: timedelta) -> None:
        if time > timedelta():
            advance(time, schedules=False, backend=self.engine.alias)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        connection = connections[self.engine.database]
        self._is_dead, self._outermost, self._base = False, "", len(connection.savepoint_ids)
        try:
            with connection.execute_wrapper(self._execute):
                yield
        finally:
            if self._is_dead:
                del connection.savepoint_ids[self._base :]
                connection.needs_rollback = False

    def _execute(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Mapping[str, Any]
    ) -> Any:
        connection, text = context["connection"], sql if isinstance(sql, str) else str(sql)
        match = SAVEPOINTS.match(text)
        if self._is_dead:
            if match:  # Django tidies up
                return None
            raise ProcessEnd
        if open_ones := [name for name in connection.savepoint_ids[self._base :] if name]:
            self._outermost = open_ones[0]
        is_commit = match is not None and match[1].upper() == "RELEASE" and match[2] == self._outermost
        if not is_commit and (match or not WRITES.search(LOCKS.sub("", text))):
            return execute(sql, params, many, context)
        self._number += 1
        self.reach(connection, text, is_after=False)
        returned = execute(sql, params, many, context)
        if is_commit:
            self._outermost = ""
        elif context["cursor"].rowcount == 0:  # it has changed nothing
            self.points.pop()
            return returned
        if not self._outermost:
            self.reach(connection, text, is_after=True)
        return returned

    def reach(self, connection: Any, text: str, *, is_after: bool) -> None:
        """End the process if it is to end here."""
        self.points.append(CrashPoint(self._number, is_after, " ".join(text.split())[:STATEMENT_CHARACTERS]))
        if (self._number, is_after) not in self.crashes:
            return
        self._is_dead = True
        if self._outermost:
            connection.connection.execute(connection.ops.savepoint_rollback_sql(self._outermost))
        raise ProcessEnd


def rescue(engine: Engine) -> None:
    """Let the executors of all RUNNING tasks be lost, and rescue the tasks."""
    running = engine.db.tasks.running()
    silence = timedelta(seconds=2 * engine.db.options.heartbeat_timeout)
    holders = {pk for pk in running.values_list("executor_id", flat=True) if pk is not None}
    long_ago = engine.db.now() - silence
    engine.db.heartbeats.filter(pk__in=holders).update(at=long_ago)
    Heartbeat.objects.using(engine.database).bulk_create(
        [Heartbeat(executor_id=pk, at=long_ago) for pk in holders], ignore_conflicts=True
    )
    running.update(claimed_at=F("claimed_at") - silence)
    engine.executors.rescue(limit=len(running) + 1)

"""Schedules under the alias of a race, and a clock that only the race moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import msgspec
from django.db import transaction

from jobqueue.api import schedule_deployments as deployments
from jobqueue.api import schedules as api
from jobqueue.declarations.schedules import Declaration
from jobqueue.engine import ticks
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import DuplicateKey, ScheduleNotFound
from jobqueue.models import Schedule
from jobqueue.models.clock import clock_to_compare
from jobqueue.schedules.expressions import Every, Expression
from jobqueue.schedules.planning import Policy, first_tick
from jobqueue.schedules.rows import expression_columns, make_policy, make_task, parse_expression
from jobqueue.values.ids import new_id
from jobqueue.values.policies import Overlap, SkipReason
from jobqueue.values.records import NewTask
from verification.interleavings.backend import IsolatedBackend, crash_at_commit, executor_info, succeed
from verification.interleavings.stepper import CLOCK, TIME_PASSES, step

# Far from the clocks of the process and the server: an engine that asks one of these makes mistakes.
START = datetime(2040, 1, 1, 12, 0, 5, tzinfo=UTC)
NOON = START.replace(second=0)  # the last due tick of schedules with a tick every hour
HOUR = timedelta(hours=1)

OF_THIS_BACKEND = "schedule_id IN (SELECT id FROM jobqueue_schedule WHERE backend = %(backend)s)"
SAVE = f"""
    DROP TABLE IF EXISTS saved_schedule, saved_tick, saved_deployment;
    CREATE TEMPORARY TABLE saved_schedule AS SELECT * FROM jobqueue_schedule WHERE backend = %(backend)s;
    CREATE TEMPORARY TABLE saved_tick AS SELECT * FROM jobqueue_scheduletick WHERE {OF_THIS_BACKEND};
    CREATE TEMPORARY TABLE saved_deployment AS SELECT * FROM jobqueue_scheduledeployment WHERE backend = %(backend)s
"""
CLEAR = f"""
    DELETE FROM jobqueue_scheduletick WHERE {OF_THIS_BACKEND};
    DELETE FROM jobqueue_schedule WHERE backend = %(backend)s;
    DELETE FROM jobqueue_scheduledeployment WHERE backend = %(backend)s
"""
RESTORE = f"""
    {CLEAR};
    INSERT INTO jobqueue_schedule SELECT * FROM saved_schedule;
    INSERT INTO jobqueue_scheduletick SELECT * FROM saved_tick;
    INSERT INTO jobqueue_scheduledeployment SELECT * FROM saved_deployment
"""


@dataclass(frozen=True)
class SteppedTiming:
    """When a schedule is due. waiting: the tick that waits for a task. first: the first one that has no outcome."""

    expression: Expression
    policy: Policy
    first: datetime | None
    waiting: datetime | None = None

    @classmethod
    def of(cls, row: Schedule) -> SteppedTiming:
        return cls(parse_expression(row), make_policy(row), row.next_at, row.waiting_at)

    def restarted(self, moment: datetime) -> SteppedTiming:
        """Return it with the first tick after a moment."""
        return replace(self, first=first_tick(self.expression, self.policy, moment), waiting=None)

    def due(self, now: datetime) -> Iterator[datetime]:
        """Yield the ticks that are due, with the jitter."""
        return self.ticks(now - self.policy.delay)

    def ticks(self, until: datetime) -> Iterator[datetime]:
        """Yield the ticks that have passed: those that need an outcome."""
        if self.waiting is not None:
            yield self.waiting
        tick = self.first
        while tick is not None and tick <= until:
            yield tick
            tick = first_tick(self.expression, self.policy, tick)


@dataclass
class ScheduleRecords:
    """
    What the clients did. The rules compare it to the rows.

    timings: of each schedule before the order. moments: the times that the clock showed. changes: the times at which
    the timing of a schedule may have changed, as the earliest and the latest one. allowed_runs: how many ticks of a
    schedule may become tasks; others must be skipped. manual: the tasks of people. backfilled: how many tasks each
    backfill has enqueued. counted_before: how many ticks a record had before the order. pruned_before: older ticks may
    have no record. deployed: the names of schedules that one deployment declares; one of these must be in force.
    """

    timings: dict[int, SteppedTiming] = field(default_factory=dict)
    moments: list[datetime] = field(default_factory=lambda: [START])
    changes: dict[int, list[tuple[datetime, datetime]]] = field(default_factory=dict)
    allowed_runs: dict[int, frozenset[int]] = field(default_factory=dict)
    manual: list[UUID] = field(default_factory=list)
    backfilled: list[int] = field(default_factory=list)
    counted_before: dict[int, int] = field(default_factory=dict)
    pruned_before: datetime = START - timedelta(days=365)
    deployed: list[frozenset[str]] = field(default_factory=list)


class ScheduleBackend(IsolatedBackend):
    """
    Rows of schedules, with the verbs of the engine and what people do with them.

    The engine reads the clock of this object. It advances by a microsecond at each look.
    It has more than 20 methods because each operation of a scenario is one.
    """

    def __init__(self, kind: type[Engine]) -> None:
        super().__init__(kind)
        self.clock = START
        self.time_passes = False
        self.schedules = ScheduleRecords()
        self.rows: dict[str, int] = {}  # name of a schedule before the order, and its id
        for part in (self.engine, self.engine.db, self.engine.ticks):
            vars(part)["now"] = self._look_at_clock

    def _look_at_clock(self) -> datetime:
        if self.time_passes:  # else the clock does not matter for the order of steps
            step(CLOCK)
        self.clock += timedelta(microseconds=1)
        return self.clock

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the functions of jobqueue.api find the engine."""
        with (
            patch.object(api, "engine_for", lambda alias="default": self.engine),
            patch.object(api, "_announce"),
            patch.object(ticks, "KEY_WAIT", "60s"),  # orders may be slow; other tests cover the timeout
            patch.object(deployments, "LOCK_WAIT", "60s"),
        ):
            yield

    # --- between orders

    def save(self) -> None:
        self._execute(SAVE)
        super().save()
        rows = list(self.engine.db.schedules)
        self.rows = {row.name: row.pk for row in rows}
        self.schedules.timings = {row.pk: SteppedTiming.of(row) for row in rows}
        self.schedules.counted_before = dict(self.engine.db.ticks.filter(schedule__in=rows).values_list("pk", "count"))
        self._saved_schedules = deepcopy(self.schedules)

    def restore(self) -> None:
        self._execute(RESTORE)
        super().restore()
        self.schedules, self.clock = deepcopy(self._saved_schedules), START

    def clear(self) -> None:
        self._execute(CLEAR)
        super().clear()

    # --- before the order

    def schedule(
        self,
        name: str = "report",
        *,
        every: timedelta = HOUR,
        due: int = 1,
        runs: Sequence[int] = (1,),
        key: str | None = None,
        **columns: Any,
    ) -> int:
        """Add a schedule with some ticks that are due; the last one since 5 seconds. runs: see `allowed_runs`."""
        values = template(name, key) | expression_columns(Every(every)) | columns
        self.clock = START - due * every
        row, _ = self.engine.schedules.save(name, values)
        self.clock = START
        self.schedules.allowed_runs[row.pk] = frozenset(runs)
        return row.pk

    def ran(self, pk: int, tick: datetime) -> UUID:
        """Add an earlier tick, whose task is READY."""
        row = self.engine.db.schedules.get(pk=pk)
        new = make_task(row, tick)
        self.engine.enqueues.enqueue([new])
        self._record(row, tick, task_id=new.id)
        return new.id

    def skipped(self, pk: int, tick: datetime) -> None:
        """Add an earlier tick that was skipped because a task was running."""
        self._record(self.engine.db.schedules.get(pk=pk), tick, reason=SkipReason.OVERLAP)

    def _record(self, row: Schedule, tick: datetime, **columns: Any) -> None:
        self.engine.db.ticks.create(schedule=row, tick_at=tick, last_at=tick, recorded_at=self.clock, **columns)

    def waiting(self, name: str = "report", *, runs: Sequence[int] = (2,)) -> int:
        """Add a schedule with a READY task, a tick that waits for it, and one that is due."""
        pk = self.schedule(name, overlap=Overlap.QUEUE_ONE, runs=runs)
        self.ran(pk, NOON - 2 * HOUR)
        self.engine.db.schedules.filter(pk=pk).update(waiting_at=NOON - HOUR)
        return pk

    def deployed_schedules(self, *names: str) -> None:
        """Write the declarations of some code. Each schedule has a due tick."""
        self.clock = NOON - HOUR / 2
        self.synchronize("first", *names)
        self.clock = START
        rows = self.engine.db.schedules.values_list("pk", flat=True)
        self.schedules.allowed_runs = dict.fromkeys(rows, frozenset([1]))

    def break_task(self, pk: int) -> None:
        """Write a template that the database refuses."""
        row = self.engine.db.schedules.get(pk=pk)
        row.new_task["queue_name"] = "q" * 5000
        self.engine.db.schedules.filter(pk=pk).update(new_task=row.new_task)

    def make_records_old(self) -> None:
        """Let all records be older than TICK_RETENTION."""
        self.schedules.pruned_before = NOON
        self.engine.db.ticks.filter(schedule__backend=self.engine.alias).update(
            recorded_at=clock_to_compare(after=-4e7)
        )

    def executor(self, digest: str, *, is_alive: bool = True) -> None:
        """Add an executor with these declarations."""
        info = executor_info(uuid4())
        self.engine.executors.heartbeat(replace(info, versions={deployments.VERSION: digest}))
        self.engine.db.heartbeats.filter(pk=info.executor_id).update(at=START if is_alive else START - 24 * HOUR)

    # --- what executors do

    def fire(self, limit: int = 500) -> None:
        self.engine.ticks.fire(limit)

    def fire_and_crash(self, *, after_commit: bool) -> None:
        with crash_at_commit(after=after_commit):
            self.fire()

    def end_task(self, name: str = "report") -> None:
        """Claim a task and end it."""
        self.poll(name, decide=succeed)

    def claim_and_forget(self, name: str) -> None:
        """Claim a task that never ends."""
        self.claim(name)

    def prune_ticks(self) -> None:
        self.engine.ticks.prune()

    def move_clock(self, by: timedelta) -> None:
        step(TIME_PASSES)
        self.clock += by
        self.schedules.moments.append(self.clock)

    def synchronize(self, digest: str, *names: str, every: timedelta = HOUR) -> None:
        """Write the declarations of some code."""
        declared = {name: declaration(name, every) for name in names}
        with self._changes_of(*self.rows.values()):
            deployments.DeclaredSchedules(declared, digest).synchronize(self.engine)

    # --- what people do

    def edit(self, name: str = "report", **columns: Any) -> None:
        """Save a schedule, as code or people do."""
        values = template(name) | columns
        with self._changes_of(self.rows.get(name)):
            self.engine.schedules.save(name, values)

    def edit_expression(self, name: str = "report", *, every: timedelta, **columns: Any) -> None:
        self.edit(name, **expression_columns(Every(every)), **columns)

    def retire(self, *names: str) -> None:
        ids = [self.rows[name] for name in names]
        with self._changes_of(*ids):
            self.engine.schedules.retire(ids)

    def pause(self, name: str = "report") -> None:
        api.pause(name, by="ada", backend=self.engine.alias)

    def pause_several(self, *names: str) -> None:
        ids = [self.rows[name] for name in names]
        self.engine.schedules.pause(ids, paused_at=self.clock, paused_by="ada")

    def resume(self, name: str = "report") -> None:
        api.resume(name, backend=self.engine.alias)

    def run_now(self, name: str = "report") -> None:
        with suppress(DuplicateKey):
            self.schedules.manual.append(api.run(name, backend=self.engine.alias))

    def backfill(self, start: datetime, end: datetime, name: str = "report") -> None:
        self.schedules.backfilled.append(api.backfill(name, start, end, backend=self.engine.alias))

    def delete(self, name: str = "report") -> None:
        with suppress(ScheduleNotFound):
            api.delete(name, backend=self.engine.alias)

    def enqueue_and_roll_back(self, key: str) -> None:
        with transaction.atomic():
            self.engine.enqueues.enqueue([NewTask(id=new_id(), task_type="tests.noop", key=key)])
            transaction.set_rollback(True)

    @contextmanager
    def _changes_of(self, *ids: int | None) -> Iterator[None]:
        """Note when the timing of schedules may change."""
        began = self.clock
        try:
            yield
        finally:
            for pk in ids:
                if pk is not None:
                    self.schedules.changes.setdefault(pk, []).append((began, self.clock))


def template(name: str, key: str | None = None) -> dict[str, Any]:
    new = NewTask(id=UUID(int=0), task_type="tests.noop", queue_name=name, key=key)
    return {"task_type": "tests.noop", "new_task": msgspec.to_builtins(new)}


def declaration(name: str, every: timedelta) -> Declaration:
    from tests.tasks import echo  # it needs the settings

    return Declaration(name, echo, Every(every), f"{name}.py:1", task_options={"queue_name": name})

"""A year of schedules in virtual time: executors look when ticks are due, people and accidents come in between."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Final
from unittest.mock import patch
from uuid import UUID, uuid4

from django.db import OperationalError, connections, transaction

from jobqueue.conf.options import parse_options
from jobqueue.engine.engine import Engine
from jobqueue.schedules.expressions import Every
from jobqueue.schedules.rows import expression_columns
from jobqueue.values.records import ClaimedTask, ClaimRequest, Outcome
from jobqueue.values.states import Status
from verification.schedules.account import Account
from verification.schedules.judge import Judge, Violation
from verification.schedules.random_schedules import random_policies, random_timing
from verification.schedules.virtual_database import VirtualDatabase

BEGIN: Final = datetime(2025, 9, 1, tzinfo=UTC)
YEAR: Final = timedelta(days=365)
SCHEDULES: Final = 50
EXECUTORS: Final = 3
BACKEND: Final = "year-of-schedules"
MAX_CLOCK_ERROR: Final = timedelta(days=2)
AGAIN: Final = timedelta(seconds=1)  # after another transaction was in the way
MAX_LOOKS: Final = 200  # of one executor until nothing is due
LOCKED: Final = "SELECT id FROM jobqueue_schedule WHERE backend = %s FOR NO KEY UPDATE SKIP LOCKED"
MICROSECOND: Final = timedelta(microseconds=1)


class SimulatedCrash(Exception):
    """The process of an executor dies here."""


@dataclass
class FrozenFire:
    """An executor that was frozen in the transaction that fires. since, until: when its clock was read."""

    since: datetime
    until: datetime
    close: Callable[[bool], None]


@dataclass(order=True)
class PlannedEvent:
    """Something that happens at a time of the real clock, which is never set."""

    at: datetime
    number: int
    act: Callable[[], None] = field(compare=False)


class ScheduleSimulation:
    """
    An engine on a virtual database, executors, tasks, and the judge of its record. The seed decides everything.

    It has more than 20 methods and more than 15 attributes because executors have no objects of their own here.
    """

    def __init__(self, kind: type[Engine], seed: int, database: VirtualDatabase, length: timedelta = YEAR) -> None:
        self.random, self.database, self.judge = Random(seed), database, Judge()
        self.engines = [kind(BACKEND, parse_options({"DATABASE": alias})) for alias in database.aliases]
        self.engine = self.engines[0]
        self.real = BEGIN
        self.clock_error = timedelta(0)  # of the database's clock
        self.end = BEGIN + length
        self.awake = EXECUTORS
        self.frozen: FrozenFire | None = None
        self.crash_at = ""
        self.diary: list[str] = []
        self.looks = self.crashes = 0
        self.claimed: dict[UUID, ClaimedTask] = {}
        self._runner = uuid4()
        self._events: list[PlannedEvent] = []
        self._numbers = count()
        self._known: set[UUID] = set()

    # --- time

    @property
    def now(self) -> datetime:
        """Return the time of the database, as far as the real clock tells it."""
        return self.real + self.clock_error

    def plan(self, after: timedelta, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, PlannedEvent(self.real + after, next(self._numbers), act))

    def some_time(self, shortest: float, longest: float) -> timedelta:
        """Return a random duration. Short ones are as likely as long ones."""
        return timedelta(seconds=shortest * (longest / shortest) ** self.random.random())

    def note(self, text: str) -> None:
        self.diary.append(f"{self.now:%Y-%m-%d %H:%M:%S.%f} {text}")

    def run(self) -> None:
        """Run to the end. Raises Violation."""
        with patch("jobqueue.engine.ticks.failpoint", self._failpoint):
            try:
                while self.real < self.end:
                    self._step()
                self._finish()
            finally:
                if self.frozen:
                    self.frozen.close(False)

    def _step(self) -> None:
        """Go to the next thing that happens: an executor looks because a tick is due, or an event."""
        event = self._events[0]
        due = self.judge.next_due() if self.awake else None
        at = event.at if due is None else min(event.at, max(self.real, due - self.clock_error))
        self.real = max(self.real, at)
        self.database.set_clock(self.now)
        if at == event.at:
            heapq.heappop(self._events).act()
        else:
            self.look()

    def _finish(self) -> None:
        """Let an executor look for the last time. Each tick of the year must be accounted for."""
        if self.frozen:
            self.thaw()
        self.awake = EXECUTORS
        self.database.set_clock(self.now)
        self.look(may_crash=False)
        for account in self.judge.accounts.values():
            self.change(account, "is removed", partial(self.engine.schedules.retire, [account.pk]))

    # --- operations: each is one transaction of the engine, which the judge checks

    @contextmanager
    def recorded(self, *, changed: int | None = None, asked: Collection[datetime] = ()) -> Iterator[None]:
        """Judge what the block changes, also if an executor dies in it."""
        since = self.database.read_clock()
        try:
            yield
        finally:
            until = self.database.read_clock()
            self.judge.record(self.database.read_entries(), since, until, changed=changed, asked=asked)
            self._plan_ends()

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Give up where a frozen executor has locked a row."""
        try:
            yield
        except OperationalError as error:
            if self.frozen is None or getattr(error.__cause__, "sqlstate", "") != "55P03":
                raise
            self.note("  gives up waiting")
            self.real += AGAIN
            raise GivenUp from error

    def look(self, *, may_crash: bool = True) -> None:
        """Let an executor do what its maintenance does."""
        self.looks += 1
        if may_crash and self.random.random() < 0.02:
            self.crash_at = self.random.choice(["schedule.before", "schedule.after"])
        elif may_crash and len(self.engines) > 1 and not self.frozen and self.random.random() < 0.01:
            self._freeze_in_transaction()
            return
        try:
            since = self._fire_all()
        except SimulatedCrash:
            self._die()
        except GivenUp:
            return
        else:
            self.judge.must_be_done([*self.judge.accounts], since)
            self.judge.waiting_must_run(since)
        finally:
            self.crash_at = ""

    def _fire_all(self) -> datetime:
        """Fire until nothing is due. Return a moment up to which all ticks must be accounted for."""
        for _ in range(MAX_LOOKS):
            due = self.engine.executors.pending_maintenance(self._runner)
            since = self.database.read_clock()
            is_due = due.next_tick_seconds is not None and due.next_tick_seconds <= 0
            # Most looks at waiting ticks find that their tasks still run.
            can_run = due.has_waiting_tick and (self.judge.can_run_waiting(since) or self.random.random() < 0.1)
            if not is_due and not can_run:
                return since
            with self.patiently(), self.recorded():
                fired = self.engine.ticks.fire()
            self.note(f"an executor fires {fired.count}: {fired.enqueued} enqueued, {fired.skipped} skipped")
            if not fired.count:
                return since
        raise Violation(f"an executor fires {MAX_LOOKS} times, and there is still something to do")

    def _failpoint(self, point: str) -> None:
        if point == self.crash_at:
            raise SimulatedCrash(point)

    def _die(self) -> None:
        self.note(f"an executor dies at {self.crash_at}")
        self.crashes += 1
        self.awake -= 1
        self.plan(self.some_time(1, 60), self.start)

    def start(self) -> None:
        if self.awake < EXECUTORS:
            self.note("an executor starts")
            self.awake += 1
            self.look()

    def _freeze_in_transaction(self) -> None:
        """Freeze an executor before its COMMIT, so that the schedules that it fires stay locked."""
        _, side = self.engines
        since = self.database.read_clock()
        atomic = transaction.atomic(using=side.database)
        atomic.__enter__()
        try:
            fired = side.ticks.fire()
        except BaseException as error:
            atomic.__exit__(type(error), error, error.__traceback__)
            raise
        with connections[self.engine.database].cursor() as cursor:
            cursor.execute(LOCKED, [BACKEND])
            free = {pk for (pk,) in cursor.fetchall()}
        self.judge.locked = self.judge.accounts.keys() - free
        self.note(f"an executor that fires {fired.count} is frozen in its transaction")

        def close(is_good: bool) -> None:
            if not is_good:
                transaction.set_rollback(True, using=side.database)
            atomic.__exit__(None, None, None)

        self.frozen = FrozenFire(since, self.database.read_clock(), close)
        self.awake -= 1
        self.plan(self.some_time(1, 4000), self.thaw)

    def thaw(self) -> None:
        """Let the frozen executor commit, or end its session."""
        if self.frozen is None:
            return
        frozen, self.frozen, is_good = self.frozen, None, self.random.random() < 0.7
        self.note(f"the frozen executor {'commits' if is_good else 'is rolled back'}")
        frozen.close(is_good)
        self.judge.locked = ()
        self.judge.record(self.database.read_entries(), frozen.since, frozen.until)
        self._plan_ends()
        self.awake += 1
        self.look()

    def change(self, account: Account, what: str, verb: Callable[[], object], *, is_cut_short: bool = True) -> bool:
        """Change one schedule. Its due ticks must be accounted for. Return False if it was locked."""
        self.note(f"{account.name} {what}")
        try:
            with self.patiently(), self.recorded(changed=account.pk if is_cut_short else None):
                since = self.database.read_clock()
                verb()
        except GivenUp:
            return False
        self.judge.must_be_done([account.pk], since, with_jitter=not is_cut_short)
        return True

    def create(self, number: int) -> None:
        name, columns = f"s{number}", random_policies(self.random) | {"retired_at": None}
        # The row shows which part of its jitter the name gives it, a multiple of 2^-32.
        probe = expression_columns(Every(days=7)) | {"jitter_seconds": 86_400.0}
        row, _ = self.engine.schedules.save(name, columns | probe)
        assert row.next_at is not None
        assert row.due_at is not None
        timing = random_timing(self.random, self.now, self.end)
        account = Account(row.pk, name, columns | timing.columns, timing)
        account.jitter_part = round((row.due_at - row.next_at).total_seconds() / 86_400 * 2**32) / 2**32
        row, _ = self.engine.schedules.save(name, account.columns)
        self.judge.accounts[row.pk] = account
        account.begin(timing, row.updated_at, self.end + MAX_CLOCK_ERROR)
        self.note(f"{name} is created: {account.columns}")

    # --- tasks

    def _plan_ends(self) -> None:
        """Decide how long each new task takes."""
        for pk in self.judge.lives.keys() - self._known:
            self.plan(self.some_time(1, 200_000), partial(self.end_task, pk))
        self._known |= self.judge.lives.keys()

    def end_task(self, pk: UUID) -> None:
        life = self.judge.lives.get(pk)
        if life is None or life.died is not None:
            return
        if pk not in self.claimed:
            request = ClaimRequest(executor_id=self._runner, queues=["default"], limit=500)
            self.claimed |= {task.id: task for task in self.engine.claims.claim(request)}
        task = self.claimed.pop(pk, None)
        if task is None:  # the frozen executor cancels it
            self.plan(AGAIN, lambda: self.end_task(pk))
            return
        outcome = Outcome(task_id=pk, claim_number=task.claim_number, status=Status.SUCCESSFUL, attempts=1)
        with self.recorded():
            answer = self.engine.commits.commit([outcome])
        if pk in answer.unknown:
            self.claimed[pk] = task
            self.plan(AGAIN, lambda: self.end_task(pk))
        if self.awake and self.judge.can_run_waiting(self.now):
            self.look()


class GivenUp(Exception):
    """A row was locked for too long."""

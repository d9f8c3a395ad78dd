"""What happens to schedules in a simulation: people change them, executors stop, clocks are set."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from jobqueue.values.ids import new_id
from jobqueue.values.records import NewTask
from verification.schedules.account import Account
from verification.schedules.random_schedules import KEYS, TASK_TYPE, random_policies, random_timing
from verification.schedules.simulation import (
    AGAIN,
    BACKEND,
    MAX_CLOCK_ERROR,
    MICROSECOND,
    SCHEDULES,
    GivenUp,
    ScheduleSimulation,
)

MOVES_PER_DAY: Final = 3
MONTH: Final = timedelta(days=30)


class YearOfSchedules(ScheduleSimulation):
    """A simulation with random moves."""

    def run(self) -> None:
        self.database.set_clock(self.now)
        self.database.read_entries()
        for number in range(1, SCHEDULES + 1):
            self.create(number)
        self.database.read_entries()
        self.plan(timedelta(0), self._move)
        self.plan(MONTH, self._prune)
        super().run()

    def _move(self) -> None:
        """Make one move, and plan the next one. Each third comes when a tick becomes due."""
        moves: dict[Callable[[], None], float] = {
            self._retime: 4,
            self._change_policies: 4,
            self._pause: 4,
            self._resume: 3,
            self._retire: 2,
            self._revive: 2,
            self._run_now: 2,
            self._backfill: 1,
            self._take_key: 3,
            self._stop_all: 1,
            self._kill: 3,
            self._set_clock: 1.5,
        }
        ((move),) = self.random.choices([*moves], [*moves.values()])
        move()
        wait = timedelta(seconds=self.random.expovariate(MOVES_PER_DAY / 86_400))
        due = self.judge.next_due()
        if due and self.random.random() < 0.33:
            # A verb reads the clock several times. Each reading takes a microsecond.
            wait = max(timedelta(0), due - self.now - self.random.randint(0, 25) * MICROSECOND)
        self.plan(wait, self._move)

    def _any(self, **state: Any) -> Account | None:
        """Return a random schedule in this state, often one with a tick that waits or has come."""
        matching = [
            account
            for account in self.judge.accounts.values()
            if all(getattr(account, name) == value for name, value in state.items())
        ]
        busy = [
            account for account in matching if account.waiting or (account.upcoming and account.upcoming[0] < self.now)
        ]
        choice = busy if busy and self.random.random() < 0.5 else matching
        return self.random.choice(choice) if choice else None

    # --- people

    def _retime(self) -> None:
        if account := self._any(is_retired=False):
            times = account.timing.times if self.random.random() < 0.4 else None
            timing = random_timing(self.random, self.now, self.end, times)
            if self._save(account, f"gets {timing.columns}", timing.columns):
                account.columns |= timing.columns
                account.begin(timing, self._updated_at(account), self._horizon)

    def _change_policies(self) -> None:
        if account := self._any(is_retired=False):
            columns = random_policies(self.random)
            if self._save(account, f"gets {columns}", columns):
                account.columns |= columns

    def _save(self, account: Account, what: str, columns: dict[str, Any]) -> bool:
        return self.change(account, what, partial(self.engine.schedules.save, account.name, columns))

    def _updated_at(self, account: Account) -> datetime:
        return self.engine.db.schedules.values_list("updated_at", flat=True).get(pk=account.pk)

    @property
    def _horizon(self) -> datetime:
        return self.end + MAX_CLOCK_ERROR

    def _pause(self) -> None:
        if account := self._any(is_retired=False):
            until = self.now + self.some_time(1, 1_000_000) if self.random.random() < 0.5 else None
            verb = partial(self.engine.schedules.pause, [account.pk], paused_at=self.now, resume_at=until)
            if self.change(account, f"is paused until {until}", verb, is_cut_short=False):
                account.is_paused, account.resume_at = True, until

    def _resume(self) -> None:
        if account := self._any(is_retired=False, is_paused=True):
            verb = partial(self.engine.schedules.resume, [account.pk])
            if self.change(account, "is resumed", verb, is_cut_short=False):
                account.is_paused, account.resume_at = False, None

    def _retire(self) -> None:
        account = self._any(is_retired=False)
        if account and self.change(account, "is removed", partial(self.engine.schedules.retire, [account.pk])):
            account.is_retired = True
            account.upcoming.clear()

    def _revive(self) -> None:
        account = self._any(is_retired=True)
        if account and self._save(account, "is back", {"retired_at": None}):
            account.is_retired = False
            account.begin(account.timing, self._updated_at(account), self._horizon)

    def _run_now(self) -> None:
        if account := self._any(is_retired=False):
            self._run(f"{account.name} runs now", partial(self.engine.schedules.run_now, account.pk))

    def _backfill(self) -> None:
        """Run some of the earlier ticks, twice: the second time adds nothing."""
        if account := self._any(is_retired=False):
            ticks = account.timing.ticks(self.now - timedelta(days=3), self.now)[-5:]
            for _ in range(2):
                verb = partial(self.engine.schedules.backfill, account.pk, ticks)
                self._run(f"{account.name} makes up for {len(ticks)} ticks", verb, ticks)

    def _run(self, what: str, verb: Callable[[], object], ticks: Collection[datetime] = ()) -> None:
        self.note(what)
        try:
            with self.patiently(), self.recorded(asked=ticks):
                verb()
        except GivenUp:
            return

    def _take_key(self) -> None:
        """Enqueue a task that has the key of some schedules."""
        key = self.random.choice(KEYS)
        task = NewTask(id=new_id(), task_type=TASK_TYPE, key=key)
        self._run(f"a user enqueues a task with the key {key}", partial(self.engine.enqueues.enqueue, [task]))

    # --- accidents

    def _stop_all(self) -> None:
        """Stop all executors for seconds or days."""
        self.note("all executors stop")
        self.awake = 0
        self.plan(self.some_time(5, 300_000), self.start)

    def _kill(self) -> None:
        if self.awake:
            self.note("an executor is killed")
            self.awake -= 1
            self.plan(self.some_time(1, 100_000), self.start)

    def _set_clock(self) -> None:
        """Set the database's clock forward or back, or right again."""
        error = timedelta(0)
        if not self.clock_error:
            error = self.some_time(0.001, MAX_CLOCK_ERROR.total_seconds()) * self.random.choice([-1, 1])
        self.note(f"the clock is set by {error - self.clock_error}")
        is_back, self.clock_error = error < self.clock_error, error
        if is_back:  # ticks that are accounted for may seem to come again
            for _ in range(5):
                self.plan(AGAIN, self._retime)

    def _prune(self) -> None:
        """Delete old ticks and tasks."""
        with self.recorded():
            self.engine.ticks.prune()
            self.engine.tasks.prune(1000)
        self.note(f"old rows of {BACKEND} are deleted")
        self.plan(MONTH, self._prune)

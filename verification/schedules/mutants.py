"""Engines with schedules that are wrong in one plausible way. The simulation must catch each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import patch

from jobqueue.engine import ticks
from jobqueue.engine.due_schedules import DueSchedule
from jobqueue.engine.engine import Engine
from jobqueue.engine.schedules import Schedules
from jobqueue.engine.ticks import Ticks
from jobqueue.models import Schedule
from jobqueue.schedules import expressions, planning
from jobqueue.schedules.planning import Plan, Skipped
from jobqueue.values.policies import SkipReason
from jobqueue.values.records import FiredSchedules
from verification.schedules.judge import IN_TIME, MAY_RUN, ONCE, ONE_TASK


class ContinuesFromNow(Engine):
    """Computes the next tick from the time of firing. Ticks that became due before it are lost."""

    class ticks_class(Ticks):
        def _account_for(self, rows: Sequence[Schedule], now: datetime, **options: Any) -> FiredSchedules:
            def plan(due: DueSchedule, *state: Any, **more: Any) -> Plan:
                return replace(right_plan(due, *state, **more), next_at=due.first_tick(self.db.now()))

            right_plan = DueSchedule.plan
            with patch.object(DueSchedule, "plan", plan):
                return super()._account_for(rows, now, **options)


class ForgetsTakenKeys(Engine):
    """Records nothing when another task has the key."""

    class ticks_class(Ticks):
        def record_skipped(self, skipped: Sequence[tuple[Schedule, Skipped]]) -> None:
            super().record_skipped([(row, skip) for row, skip in skipped if skip.reason != SkipReason.KEY])


class CommitsTasksFirst(Engine):
    """Commits tasks and ticks before the next tick. After a crash in between it repeats them."""

    class ticks_class(Ticks):
        def _fire_due(self, limit: int, **options: Any) -> FiredSchedules:
            with patch.object(self.db, "transaction", nullcontext):
                return super()._fire_due(limit, **options)

        def record_skipped(self, skipped: Sequence[tuple[Schedule, Skipped]]) -> None:
            vars(ticks)["failpoint"]("schedule.before")  # the simulation replaces it
            super().record_skipped(skipped)


class LosesWaitingTick(Engine):
    """Removes a schedule without a record of the tick that waits."""

    class schedules_class(Schedules):
        def retire(self, ids: Collection[int]) -> int:
            with patch.object(self._ticks, "record_skipped"):
                return super().retire(ids)


class IgnoresLiveTasks(Engine):
    """Never notices that a task of the schedule is live."""

    class ticks_class(Ticks):
        def _live_tasks(self, rows: Any) -> Any:
            return super()._live_tasks(rows).none()


class ForgetsPauses(Engine):
    """Fires paused schedules."""

    class ticks_class(Ticks):
        def _account_for(self, rows: Sequence[Schedule], now: datetime, **options: Any) -> FiredSchedules:
            read = self.read
            with patch.object(self, "read", lambda row: replace(read(row), paused_until=None)):
                return super()._account_for(rows, now, **options)


class DropsJitteredTicks(Engine):
    """Changes a schedule and forgets the ticks that wait for their jitter."""

    class schedules_class(Schedules):
        def _lock_and_account(self, *, with_jitter: bool = True, **where: Any) -> tuple[Schedule, datetime]:
            return super()._lock_and_account(**where)


class ExtendsAnyRecord(Engine):
    """Extends the newest record of skipped ticks, also one with another reason."""

    class ticks_class(Ticks):
        def record_skipped(self, skipped: Sequence[tuple[Schedule, Skipped]]) -> None:
            with patch.object(ticks, "follows", lambda row, last, new: last.task_id is None):
                super().record_skipped(skipped)


class IgnoresSkippedHours(Engine):
    """Runs a job in a skipped hour at the time that the wall would have shown."""

    class ticks_class(Ticks):
        def _account_for(self, rows: Sequence[Schedule], now: datetime, **options: Any) -> FiredSchedules:
            with patch.object(expressions, "_first_real", lambda wall, zone: wall.replace(tzinfo=zone).astimezone(UTC)):
                return super()._account_for(rows, now, **options)


class MakesUpForAll(Engine):
    """Makes up for each missed tick, also if only the last one, or none, was asked for."""

    class ticks_class(Ticks):
        def _account_for(self, rows: Sequence[Schedule], now: datetime, **options: Any) -> FiredSchedules:
            with patch.object(planning, "MISSED_AFTER", timedelta(days=365)):
                return super()._account_for(rows, now, **options)


class CountsTickTwice(Engine):
    """Counts the tick after a range of missed ticks in the range, and plans it, too."""

    class ticks_class(Ticks):
        def _account_for(self, rows: Sequence[Schedule], now: datetime, **options: Any) -> FiredSchedules:
            def passed(*arguments: Any) -> tuple[tuple[Skipped, ...], datetime | None]:
                ranges, tick = right_passed(*arguments)
                missed = [tick_range for tick_range in ranges if tick_range.reason == SkipReason.MISSED]
                others = [tick_range for tick_range in ranges if tick_range not in missed]
                return (
                    *others,
                    *(
                        replace(missed_range, last_at=tick or now, count=missed_range.count + 1)
                        for missed_range in missed
                    ),
                ), tick

            right_passed = vars(planning)["_passed"]
            with patch.object(planning, "_passed", passed):
                return super()._account_for(rows, now, **options)


@dataclass(frozen=True, slots=True)
class ScheduleMutant:
    """A broken engine, and how the report of it starts."""

    kind: type[Engine]
    problem: str
    seed: int = 1


MAX_YEARS: Final = 3  # until a mutant is caught
MUTANTS: Final = (
    ScheduleMutant(ContinuesFromNow, IN_TIME, seed=4),
    ScheduleMutant(ForgetsTakenKeys, IN_TIME),
    ScheduleMutant(CommitsTasksFirst, ONE_TASK),
    ScheduleMutant(LosesWaitingTick, IN_TIME, seed=4),
    ScheduleMutant(IgnoresLiveTasks, MAY_RUN),
    ScheduleMutant(ForgetsPauses, MAY_RUN),
    ScheduleMutant(DropsJitteredTicks, IN_TIME),
    ScheduleMutant(ExtendsAnyRecord, ONCE),
    ScheduleMutant(IgnoresSkippedHours, IN_TIME, seed=6),
    ScheduleMutant(MakesUpForAll, MAY_RUN),
    ScheduleMutant(CountsTickTwice, ONCE),
)

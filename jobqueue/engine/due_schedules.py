"""Read a schedule's row to plan its ticks, and write the next tick back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from jobqueue.models import Schedule
from jobqueue.schedules.expressions import Expression
from jobqueue.schedules.planning import Plan, Policy, first_tick, make_plan
from jobqueue.schedules.rows import from_row_time, make_policy, parse_ticks, to_row_time

FOREVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class DueSchedule:
    """A row of a schedule, read once for its ticks. Its times have a time zone; those of `row` may not."""

    row: Schedule  # as it was locked
    ticks: Expression  # its expression, which yields the ticks
    policy: Policy  # how it treats them
    next_at: datetime | None  # the first tick that is not decided; None: it has stopped
    waiting_at: datetime | None  # the tick that waits for the end of the running task; None: no tick waits
    paused_until: datetime | None  # datetime.max if only people end the pause

    @classmethod
    def from_row(cls, row: Schedule) -> DueSchedule:
        """Read a row. Raises ValueError if it is not valid."""
        paused_until = from_row_time(row.resume_at) or FOREVER if row.has_pause else None
        next_at, waiting_at = from_row_time(row.next_at), from_row_time(row.waiting_at)
        return cls(row, parse_ticks(row), make_policy(row), next_at, waiting_at, paused_until)

    def plan(self, now: datetime, *, has_live_task: bool, with_jitter: bool = True) -> Plan:
        """Plan the due ticks. now: a time of the database."""
        return make_plan(
            self.ticks,
            self.policy,
            from_row_time(now),
            next_at=self.next_at,
            waiting_at=self.waiting_at,
            paused_until=self.paused_until,
            has_live_task=has_live_task,
            with_jitter=with_jitter,
        )

    def first_tick(self, after: datetime) -> datetime | None:
        """Return the first tick after a time of the database."""
        return first_tick(self.ticks, self.policy, from_row_time(after))

    def lateness(self, tick: datetime, enqueued_at: datetime) -> float | None:
        """Return by how many seconds the task of a tick was late; None for a tick that waited for a running task."""
        if tick == self.waiting_at:
            return None
        return max(0.0, (from_row_time(enqueued_at) - tick - self.policy.delay).total_seconds())

    def write_next(self, plan: Plan) -> None:
        """Write the next and the waiting tick to the row. The caller saves it."""
        set_next(self.row, plan.next_at)
        self.row.waiting_at = to_row_time(plan.waiting_at)


def set_next(row: Schedule, next_at: datetime | None) -> None:
    """Write the next tick to a row, and when it is due. The caller saves it."""
    tick = from_row_time(next_at)
    row.next_at = to_row_time(tick)
    row.due_at = None if tick is None else to_row_time(tick + make_policy(row).delay)

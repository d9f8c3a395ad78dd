"""Between a row and its values: the expression, the policy, and the template of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Protocol, overload

import msgspec
from django.conf import settings
from django.utils.timezone import get_default_timezone, is_naive, make_aware, make_naive
from msgspec.structs import replace

from jobqueue.schedules.expressions import EPOCH, Cron, Every, Expression, ValueProblem
from jobqueue.schedules.planning import Policy
from jobqueue.values.ids import new_id
from jobqueue.values.policies import CatchUp, Overlap
from jobqueue.values.records import NewTask

EVERY = "@every "
MAX_QUEUE_NAME = 128  # characters in a column


class ScheduleRow(Protocol):
    """
    The columns of a schedule that its values come from.

    It has more than 15 attributes because each column is one.
    """

    pk: int
    backend: str
    name: str
    task_type: str
    new_task: dict[str, Any]
    expression: str
    timezone: str
    anchor_at: datetime | None
    ends_at: datetime | None
    jitter_seconds: float
    overlap: str
    catch_up: str
    max_catch_up: int
    catch_up_window_seconds: float | None
    paused_at: datetime | None
    resume_at: datetime | None


def parse_expression(row: ScheduleRow) -> Expression:
    """Return the expression of a row. Raises ValueError if it is not valid."""
    expression: Cron | Every
    if row.expression.startswith(EVERY):
        expression = Every(
            seconds=float(row.expression.removeprefix(EVERY)), anchor=from_row_time(row.anchor_at) or EPOCH
        )
    else:
        expression = Cron(row.expression, row.timezone)
    for problem in expression.problems():
        raise ValueError(f"{problem}.")
    return expression


def parse_ticks(row: ScheduleRow) -> Expression:
    """Return the expression of a row, with the ticks that a row can store. Raises ValueError if it is not valid."""
    expression = parse_expression(row)
    return expression if settings.USE_TZ else OncePerLocalTime(expression)


@dataclass(frozen=True)
class OncePerLocalTime:
    """An expression without the second tick at the same local time, where the clocks are put back."""

    expression: Expression

    def problems(self) -> Iterator[ValueProblem]:
        return self.expression.problems()

    def next_after(self, moment: datetime) -> datetime | None:
        tick = self.expression.next_after(moment)
        while tick is not None and from_row_time(to_row_time(tick)) != tick:
            tick = self.expression.next_after(tick)
        return tick

    def describe(self) -> str:
        return self.expression.describe()


def expression_columns(expression: Cron | Every) -> dict[str, Any]:
    """Return the columns that store an expression."""
    match expression:
        case Cron():
            return {"expression": expression.expression, "timezone": expression.timezone, "anchor_at": None}
        case Every():
            seconds = f"{expression.interval.total_seconds():.6f}".rstrip("0").rstrip(".")
            return {"expression": f"{EVERY}{seconds}", "timezone": "", "anchor_at": to_row_time(expression.anchor)}


def make_policy(row: ScheduleRow) -> Policy:
    """Return the policy of a row. The delay is a fixed part of the jitter, which depends on the name only."""
    window = row.catch_up_window_seconds
    digest = blake2b(f"{row.backend} {row.name}".encode(), digest_size=4).digest()
    return Policy(
        overlap=Overlap(row.overlap),
        catch_up=CatchUp(row.catch_up),
        max_catch_up=row.max_catch_up,
        catch_up_window=None if window is None else timedelta(seconds=window),
        delay=timedelta(seconds=row.jitter_seconds * int.from_bytes(digest) / 2**32),
        ends_at=from_row_time(row.ends_at),
    )


def queue_name_of(row: ScheduleRow) -> str:
    """Return the queue of the tasks of a row, also of a template that cannot be used. At most 128 characters."""
    is_object = isinstance(row.new_task, dict)
    return str(row.new_task.get("queue_name", "default"))[:MAX_QUEUE_NAME] if is_object else "default"


def make_task(row: ScheduleRow, tick: datetime) -> NewTask:
    """Return the task of a tick, with a new id. Its options name the schedule and the tick."""
    template = msgspec.convert(row.new_task, dict[str, Any])
    new_task = msgspec.convert({**template, "id": new_id()}, NewTask)
    task_options = msgspec.json.decode(new_task.options, type=dict[str, Any])
    options = {**task_options, "schedule": row.name, "scheduled_at": tick.isoformat()}
    return replace(new_task, schedule_id=row.pk, options=msgspec.json.encode(options).decode())


@overload
def from_row_time(moment: datetime) -> datetime: ...
@overload
def from_row_time(moment: datetime | None) -> datetime | None: ...
def from_row_time(moment: datetime | None) -> datetime | None:
    """Return a time of a row with a time zone. Without USE_TZ, rows have local times, and the result is in UTC."""
    if moment is None or not is_naive(moment):
        return moment
    # Python never finds a local time of an hour that exists twice equal to a time of another zone.
    return make_aware(moment, get_default_timezone()).astimezone(UTC)


@overload
def to_row_time(moment: datetime) -> datetime: ...
@overload
def to_row_time(moment: datetime | None) -> datetime | None: ...
def to_row_time(moment: datetime | None) -> datetime | None:
    """Return an aware time as rows store it. Without USE_TZ, it does not say which of two equal local times it is."""
    if moment is None or settings.USE_TZ:
        return moment
    return make_naive(moment, get_default_timezone()).replace(fold=0)

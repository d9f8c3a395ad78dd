"""
A bulk action as a task of the queue: for more tasks than one request can change, or for a number of tasks a second.

The actor is declared in the first jobqueue backend. The edges enqueue it in the backend of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobqueue import api
from jobqueue.conf.compat import TASK_MAX_PRIORITY, TaskResult
from jobqueue.declarations.actions import Action, Done, Sleep
from jobqueue.declarations.actor import Actor, PollContext
from jobqueue.declarations.backends import HOME, queues_of
from jobqueue.engine import Count, engine_for, read_clock
from jobqueue.operations.backends import backends_on
from jobqueue.operations.bulk.actions import plural_values
from jobqueue.operations.bulk.target import BATCH, BulkRun, Target, WalkPosition
from jobqueue.operations.executors import ExecutorState, read_executors
from jobqueue.values.records import BULK_ACTION

NAME = BULK_ACTION
MAX_RATE = 100_000  # tasks a second


@dataclass
class BulkProgress:
    """The state of the actor."""

    position: WalkPosition | None = field(
        default_factory=WalkPosition
    )  # where the next poll goes on; None: nothing is left
    handled: int = 0  # tasks, changed or not
    result: dict[str, int] = field(default_factory=dict)  # how many tasks, by what became of them
    next_at: datetime | None = None  # when the rate allows the next batch; None: at once


class BulkActor(
    Actor[BulkProgress],
    name=NAME,
    abstract=not HOME,
    **HOME,
):
    """
    Perform a bulk action, a batch with each poll.

    A batch and the progress are one transaction, so each task is counted once, also after a crash. Cancel the task to
    stop it: the tasks that it has not reached stay as they are.
    """

    State = BulkProgress

    def poll(
        self, context: PollContext[BulkProgress], target: dict[str, Any], rate: int | None = None
    ) -> Callable[[], Action | None]:
        """Return the function that changes a batch in the committing transaction."""
        context.inbox.take()  # unread messages would wake it again
        return lambda: perform_batch(context.state, Target.parse(target), rate)


def perform_batch(progress: BulkProgress, target: Target, rate: int | None) -> Action | None:
    """Change the next tasks of the target, at most `rate` of them, and a second's worth of tasks a second."""
    now = read_clock(target.selection.database)
    if progress.next_at is not None and now < progress.next_at:  # woken by a message or by "Run now"
        return Sleep(progress.next_at)
    number = target.bounds.number or 0
    size = min(BATCH, rate or BATCH, number - progress.handled)
    ids, progress.position = target.take(progress.position or WalkPosition(), size) if size > 0 else ([], None)
    if ids:
        run = BulkRun(target.action)
        run.perform(ids)
        progress.result = {name: progress.result.get(name, 0) + count for name, count in run.numbers.items()}
        progress.handled += len(ids)
    if progress.position is None or progress.handled >= number:
        if moved := number - progress.handled:
            progress.result["moved"] = moved
        return Done(progress.result)
    if not rate or not ids:
        return None
    progress.next_at = now + timedelta(seconds=len(ids) / rate)
    return Sleep(progress.next_at)


def start(target: Target, rate: int | None = None) -> TaskResult[..., Any]:
    """Enqueue the task that performs a bulk action, in a backend of the selection and a queue that is served."""
    backend = target.selection.filters.get("backend") or backends_on(target.selection.database)[0]
    task = BulkActor.using(backend=backend, queue_name=_served_queue(backend), priority=TASK_MAX_PRIORITY)
    return task.enqueue(target.as_json(), **({} if rate is None else {"rate": rate}))


def _served_queue(backend: str) -> str:
    """Return the usual queue, or another one if only that has executors."""
    engine = engine_for(backend)
    executors = read_executors(engine, engine.db.now())
    served = [executor.row.queues for executor in executors if executor.state == ExecutorState.ALIVE]
    queues = queues_of(backend)
    if not api.declared_queues(backend):  # each name is allowed
        queues += sorted({name for names in served for name in names} - {*queues})
    return next((name for name in queues if any(not names or name in names for names in served)), queues[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBulkProgress:
    """The facts that the page of a bulk action shows."""

    number: int  # of the tasks that it can change
    handled: int  # tasks, changed or not
    rate: int | None  # tasks a second; None: no limit
    forecast: str  # what it was to do, as on the confirmation page
    result: str  # a sentence with the numbers
    chosen_by: str  # the filter


def read_bulk_progress(args: Any, kwargs: Any, state: Any) -> ShownBulkProgress | None:
    """Return the progress of a bulk action, from the columns of its row; None if they are not readable."""
    try:
        target = Target.parse(args[0])
        progress = msgspec.convert(state or {}, BulkProgress)
        rate = msgspec.convert(kwargs.get("rate"), int | None)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    number = target.bounds.number or 0
    return ShownBulkProgress(
        number=number,
        handled=progress.handled,
        rate=rate,
        forecast=str(target.action.forecast % plural_values(Count(number))),
        result=target.action.describe(progress.result) if progress.handled else "",
        chosen_by=target.selection.query,
    )

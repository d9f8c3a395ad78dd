"""Cancel, requeue and wake tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from jobqueue.api.backends import batches, group_by_backend
from jobqueue.api.notifications import (
    CANCEL_NOTIFICATION,
    after_commit,
    notify_after_commit,
    notify_ready,
    wake_and_notify,
)
from jobqueue.engine import Engine, LockTimeout, engine_for
from jobqueue.models import Task
from jobqueue.values.changes import CancelReport, ChangeReport, RequeueReport

Report = TypeVar("Report", CancelReport, RequeueReport, ChangeReport)

LOCK_WAIT_SECONDS = 1.0  # how long a batch waits for rows that other transactions have locked
LOCK_RETRY_SECONDS = 0.02
LOCK_TRY = "50ms"  # how long a statement waits for a lock that it cannot skip: of a key, or of the whole table


def cancel(
    ids: Iterable[UUID | str] | UUID | str,
    *,
    tree: bool = False,
    at_once: bool = False,
    backend: str | None = None,
    may: Callable[[Task], bool] | None = None,
) -> CancelReport:
    """
    Cancel tasks. READY, SCHEDULED and SUSPENDED tasks end at once. Running tasks are asked to stop.

    A running function is interrupted as soon as possible. If it returns a result before that, it ends SUCCESSFUL. A
    running actor finishes its poll. A workflow with compensations runs them first. If another transaction has locked a
    task, or the parent to which it sends its end, for more than a second, the task is not changed, and the report lists
    it in `busy`.

    tree: cancel the live descendants, too, except those of a `busy` task. at_once: end workflows without their
    compensations, and running tasks, too: their executors lose the claim. backend: None searches the default backend,
    then the others. may: a function that gets each live task, with its backend, task_type and queue_name. If it returns
    False, the task continues, and the report lists it in `not_allowed`.
    """

    def act(engine: Engine, batch: Collection[UUID]) -> CancelReport:
        report = engine.tasks.cancel(batch, tree=tree, wait=False, at_once=at_once, may=may)
        if report.parents:
            after_commit(engine.database, partial(wake_and_notify, engine, report.parents))
        if report.requested:
            notify_after_commit(engine, {CANCEL_NOTIFICATION})
        return report

    return replace(_in_batches(ids, backend, act, CancelReport), parents=frozenset())


def requeue(ids: Iterable[UUID | str] | UUID | str, *, backend: str | None = None) -> RequeueReport:
    """
    Put FAILED and CANCELLED tasks back in their queues, with all their attempts.

    If another live task has the key of a task, the task is not changed, and the report counts it in `key_taken`.
    A workflow that failed because of a child, and the child, are requeued together: the workflow goes on. backend and
    `busy`: as for cancel().
    """

    def act(engine: Engine, batch: Collection[UUID]) -> RequeueReport:
        report = engine.tasks.requeue(batch, wait=False)
        if report.requeued:
            after_commit(engine.database, partial(notify_ready, engine, {*batch, *report.related}))
        return report

    return replace(_in_batches(ids, backend, act, RequeueReport), related=frozenset())


def run_now(ids: Iterable[UUID | str] | UUID | str, *, backend: str | None = None) -> ChangeReport:
    """
    Make SCHEDULED and SUSPENDED tasks READY, before their time, or before a message.

    A task with a limit or a rate still waits for it. backend and `busy`: as for cancel().
    """

    def act(engine: Engine, batch: Collection[UUID]) -> ChangeReport:
        report = engine.tasks.run_now(batch, wait=False)
        if report.changed:
            after_commit(engine.database, partial(notify_ready, engine, batch))
        return report

    return _in_batches(ids, backend, act, ChangeReport)


def discard(ids: Iterable[UUID | str] | UUID | str, *, backend: str | None = None) -> ChangeReport:
    """Make FAILED tasks CANCELLED. They can be requeued until they are pruned. backend and `busy`: as for cancel()."""
    return _in_batches(ids, backend, lambda engine, batch: engine.tasks.discard(batch, wait=False), ChangeReport)


def delete(ids: Iterable[UUID | str] | UUID | str, *, backend: str | None = None) -> ChangeReport:
    """Delete ended tasks with their messages. backend and `busy`: as for cancel()."""
    return _in_batches(ids, backend, lambda engine, batch: engine.tasks.delete(batch, wait=False), ChangeReport)


def _in_batches(
    ids: Iterable[UUID | str] | UUID | str,
    backend: str | None,
    act: Callable[[Engine, Collection[UUID]], Report],
    report_class: type[Report],
) -> Report:
    """Act on each batch, and for a second at most again on its locked tasks. Those that stay locked are `busy`."""

    def attempt(engine: Engine, batch: Sequence[UUID], deadline: float) -> Report:
        """Act on a batch. If a lock stops it, act on its halves, so that only the locked tasks stay unchanged."""
        try:
            with engine.db.bounded("a task", LOCK_TRY):
                return act(engine, batch)
        except LockTimeout:
            if len(batch) == 1 or time.monotonic() >= deadline:
                return report_class(busy=frozenset(batch))
        half = len(batch) // 2
        return attempt(engine, batch[:half], deadline) + attempt(engine, batch[half:], deadline)

    total = report_class()
    for engine, batch in group_by_backend(ids, backend):
        deadline = time.monotonic() + LOCK_WAIT_SECONDS
        result = attempt(engine, batch, deadline)
        while (busy := result.busy) and time.monotonic() < deadline:
            time.sleep(LOCK_RETRY_SECONDS)
            result = replace(result, busy=frozenset()) + attempt(engine, sorted(busy), deadline)
        total += result
    return total


def wake(ids: Iterable[UUID | str] | UUID | str, *, backend: str = "default") -> int:
    """
    Make SUSPENDED tasks READY. Return how many there were. After the commit, idle executors are notified.

    Raises OperationalError if another transaction has locked one of the tasks for more than a second.
    """
    engine, woken = engine_for(backend), 0
    for batch in batches(ids):
        with engine.db.bounded("a task"):
            count = engine.messages.wake(batch)
        if count:
            after_commit(engine.database, partial(notify_ready, engine, batch))
            woken += count
    return woken

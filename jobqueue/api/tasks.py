"""Cancel, requeue and wake tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async

from jobqueue.api.backends import batches, group_by_backend
from jobqueue.api.notifications import (
    CANCEL_NOTIFICATION,
    after_commit,
    notify_after_commit,
    notify_ready,
    wake_and_notify,
)
from jobqueue.engine import engine_for
from jobqueue.engine.engine import Engine
from jobqueue.models import Task
from jobqueue.records import CancelReport, RequeueReport

Report = TypeVar("Report", CancelReport, RequeueReport)

LOCK_WAIT_SECONDS = 1.0  # how long a batch waits for rows that other transactions have locked
LOCK_RETRY_SECONDS = 0.02


def cancel(
    ids: Iterable[UUID | str] | UUID | str,
    *,
    tree: bool = False,
    backend: str | None = None,
    may: Callable[[Task], bool] | None = None,
) -> CancelReport:
    """
    Cancel tasks. READY, SCHEDULED and SUSPENDED tasks end at once. Running tasks are asked to stop.

    A running function is interrupted as soon as possible. If it returns a result before, it ends SUCCESSFUL. A running
    actor finishes its poll. tree: cancel their living descendants, too. backend: None searches the default backend,
    then the others. may: called with each living task, which has its backend, task_type and queue_name. Tasks for which
    it returns False continue, and the report lists them in `not_allowed`. Tasks that another transaction has locked for
    more than a second are not changed, and the report lists them in `busy`.
    """
    reports: list[CancelReport] = []
    busy: set[UUID] = set()
    for engine, mine in group_by_backend(ids, backend):
        again = partial(_cancel, engine, tree=tree, may=may)
        done = _retry_locked(again(mine), again)
        reports, busy = reports + done, busy | done[-1].busy
    return CancelReport(
        cancelled=sum(report.cancelled for report in reports),
        requested=sum(report.requested for report in reports),
        skipped=sum(report.skipped for report in reports),
        busy=frozenset(busy),
        not_allowed=frozenset(chain.from_iterable(report.not_allowed for report in reports)),
    )


async def acancel(ids: Iterable[UUID | str] | UUID | str, **options: Any) -> CancelReport:
    """See cancel()."""
    return await sync_to_async(cancel, thread_sensitive=True)(ids, **options)


def _cancel(engine: Engine, ids: Collection[UUID], *, tree: bool, may: Callable[[Task], bool] | None) -> CancelReport:
    report = engine.cancel(ids, tree=tree, wait=False, may=may)
    if report.parents:
        after_commit(engine, partial(wake_and_notify, engine, report.parents))
    if report.requested:
        notify_after_commit(engine, {CANCEL_NOTIFICATION})
    return report


def requeue(ids: Iterable[UUID | str] | UUID | str, *, backend: str | None = None) -> RequeueReport:
    """
    Put FAILED and CANCELLED tasks back in their queues, with all their attempts.

    If another live task has a task's key, the task is not changed, and counts as key_taken.
    For backend and locked tasks, see cancel().
    """
    reports: list[RequeueReport] = []
    busy: set[UUID] = set()
    for engine, mine in group_by_backend(ids, backend):
        done = _retry_locked(_requeue(engine, mine), partial(_requeue, engine))
        reports, busy = reports + done, busy | done[-1].busy
    return RequeueReport(
        requeued=sum(report.requeued for report in reports),
        key_taken=sum(report.key_taken for report in reports),
        skipped=sum(report.skipped for report in reports),
        busy=frozenset(busy),
    )


async def arequeue(ids: Iterable[UUID | str] | UUID | str, **options: Any) -> RequeueReport:
    """See requeue()."""
    return await sync_to_async(requeue, thread_sensitive=True)(ids, **options)


def _requeue(engine: Engine, ids: Collection[UUID]) -> RequeueReport:
    report = engine.requeue(ids, wait=False)
    if report.requeued:
        queues = engine.tasks.filter(pk__in=ids).order_by().values_list("queue_name", flat=True).distinct()
        notify_after_commit(engine, set(queues))
    return report


def _retry_locked(first: Report, again: Callable[[Collection[UUID]], Report]) -> list[Report]:
    """Repeat an action for locked tasks, for a second at most. The last report lists those that are still locked."""
    reports = [first]
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while reports[-1].busy and time.monotonic() < deadline:
        time.sleep(LOCK_RETRY_SECONDS)
        reports.append(again(reports[-1].busy))
    return reports


def wake(ids: Iterable[UUID | str] | UUID | str, *, backend: str = "default") -> int:
    """Wake SUSPENDED tasks and return how many woke. After the commit, waiting executors are notified."""
    engine, woken = engine_for(backend), 0
    for batch in batches(ids):
        if count := engine.wake(batch):
            after_commit(engine, partial(notify_ready, engine, batch))
            woken += count
    return woken


async def awake(ids: Iterable[UUID | str] | UUID | str, **options: Any) -> int:
    """See wake()."""
    return await sync_to_async(wake, thread_sensitive=True)(ids, **options)

"""Read the facts for the explanation of a task, and the tasks that keep a limit from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any

from django.db.models.functions import Now

from jobqueue.declarations import registry
from jobqueue.engine import alive, silent_seconds, with_heartbeat
from jobqueue.models import Executor, Queue, Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.explain import TaskFacts, explain
from jobqueue.operations.limits import KeyState, counts_for
from jobqueue.operations.payloads import RAW, find_secrets, parse_column, raw, shown_errors

MAX_EXECUTORS = 1000
MAX_HOLDERS = 3  # of a limit by key; others are only counted


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that counts for a limit, and why it has not ended."""

    task: Task
    sentence: str


def read_holders(database: str, state: KeyState, *, with_payload: bool) -> list[Holder]:
    """
    Return tasks that a BLOCKED task of a key waits for, up to MAX_HOLDERS, none if the limit allows another one.

    First those that count while they wait, because these may wait for long. Of a rate, those that have not started.
    """
    if state.is_all or state.left or not state.active:
        return []
    columns = {f"{column}_text": raw(column) for column in RAW}
    of_key = Task.objects.using(database).filter(counts_for(state.key), backend=state.backend)
    parts = [of_key] if state.is_rate else [of_key.filter(counts_while_waiting=counts) for counts in (True, False)]
    rows: list[Task] = []
    for part in parts:
        waiting = part.defer(*RAW).annotate(now=Now(), **columns).order_by("status", "rank", "pk")
        rows += waiting[: MAX_HOLDERS - len(rows)]
    patterns = options_of(state.backend).redact
    holders = []
    for row in rows:
        args, kwargs, stored = (parse_column(getattr(row, f"{name}_text")) for name in ("args", "kwargs", "errors"))
        secrets = find_secrets(row.task_type, args, kwargs, patterns)
        errors = shown_errors(stored, patterns, secrets, with_payload=with_payload)
        holders.append(Holder(row, explain(row, task_facts(row, database, errors=errors, limit=state))))
    return holders


def task_facts(task: Task, database: str, **more: Any) -> TaskFacts:
    """Read the executors and the queue of a task."""
    options = options_of(task.backend)
    now: datetime = task.now  # type: ignore[attr-defined]
    executors = with_heartbeat(Executor.objects.using(database).filter(backend=task.backend))
    executor = executors.filter(pk=task.executor_id).first() if task.executor_id else None
    living = list(
        executors.filter(alive(options.heartbeat_timeout)).only("queues", "slots", "heartbeat__state")[:MAX_EXECUTORS]
    )
    of_queue = [row for row in living if not row.queues or task.queue_name in row.queues]
    serving = [row for row in of_queue if row.heartbeat.state == Executor.State.RUNNING]
    on_event_loop = [name for name, known_task in registry.by_name().items() if iscoroutinefunction(known_task.func)]
    slots = 0 if task.task_type in on_event_loop else sum(row.slots for row in serving)  # slots count threads only
    running = Task.objects.using(database).running()
    queue = Queue.objects.using(database).filter(backend=task.backend, name=task.queue_name).first()
    in_threads = running.filter(executor_id__in=[row.pk for row in serving]).exclude(task_type__in=on_event_loop)
    of_queue_running = running.filter(backend=task.backend, queue_name=task.queue_name).order_by("executor_id")
    return TaskFacts(
        now=now,
        aging_seconds=options.aging,
        timeout_seconds=options.heartbeat_timeout,
        queue=queue,
        running=of_queue_running[: queue.max_running].count() if queue is not None and queue.max_running else 0,
        alive=len(living),
        serving=len(serving),
        knowing=_count_knowing(task, serving, database),
        paused=sum(row.heartbeat.state == Executor.State.PAUSED for row in of_queue),
        slots=slots,
        busy=in_threads[:slots].count() if slots else 0,
        executor=executor,
        silent_seconds=silent_seconds(executor, now) if executor is not None else 0.0,
        **more,
    )


def _count_knowing(task: Task, serving: Sequence[Executor], database: str) -> int:
    """Count the executors with code for a task that waits for it. Their lists of names may be long."""
    if task.status != Task.Status.AWAITING_CODE:
        return 0
    rows = Executor.objects.using(database).filter(pk__in=[row.pk for row in serving])
    return sum(task.task_type in names for names in rows.values_list("task_types", flat=True))

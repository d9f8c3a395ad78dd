"""
Factories of rows in any state, without the engine: `TaskFactory(failed=True)`.

They call bulk_create, because Task.save() raises. `using` is the database alias.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

import factory
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from jobqueue.models import (
    CounterPeriod,
    Executor,
    Heartbeat,
    InboxMessage,
    JournalEntry,
    Queue,
    Schedule,
    ScheduleTick,
    Task,
)
from jobqueue.values.ids import new_id

Row = TypeVar("Row")


def now() -> datetime:
    return datetime.now(UTC)


def ago(seconds: float) -> datetime:
    return now() - timedelta(seconds=seconds)


def error(message: str = "451 try again later", **changes: Any) -> dict[str, Any]:
    """Return one entry of a task's `errors`."""
    entry = {
        "attempt": 1,
        "at": ago(30).isoformat(),
        "executor": "web-1",
        "exception_class_path": "shop.errors.SMTPServerBusy",
        "message": message,
        "traceback": f"Traceback (most recent call last):\n  File 'shop/tasks.py', line 1\nSMTPServerBusy: {message}\n",
    }
    return entry | changes


class UsingFactory(factory.django.DjangoModelFactory[Row]):
    """Create rows in the database `using`."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[Row], *args: Any, using: str = "default", **kwargs: Any) -> Row:
        row = model_class(*args, **kwargs)
        model_class._default_manager.using(using).bulk_create([row])  # type: ignore[attr-defined]
        return row


class TaskFactory(UsingFactory[Task]):
    class Meta:
        model = Task

    class Params:
        scheduled = factory.Trait(status="SCHEDULED", wake_at=factory.LazyFunction(lambda: now() + timedelta(hours=2)))
        blocked = factory.Trait(status="BLOCKED", concurrency_key="imports:anna", concurrency_limit=1)
        awaiting_code = factory.Trait(
            status="AWAITING_CODE", claim_number=1, awaits_code_since=factory.LazyFunction(lambda: ago(40))
        )
        running = factory.Trait(
            status="RUNNING",
            claim_number=1,
            executor_id=factory.LazyFunction(uuid4),
            claimed_at=factory.LazyFunction(lambda: ago(12)),
            started_at=factory.LazyFunction(lambda: ago(12)),
            last_attempted_at=factory.LazyFunction(lambda: ago(12)),
        )
        suspended = factory.Trait(
            status="SUSPENDED",
            polls=1,
            claim_number=1,
            started_at=factory.LazyFunction(lambda: ago(40)),
            last_attempted_at=factory.LazyFunction(lambda: ago(40)),
        )
        ended = factory.Trait(
            claim_number=1,
            started_at=factory.LazyFunction(lambda: ago(33)),
            last_attempted_at=factory.LazyFunction(lambda: ago(32)),
            finished_at=factory.LazyFunction(lambda: ago(30)),
            worker_ids=["web-1"],
        )
        successful = factory.Trait(ended=True, status="SUCCESSFUL", polls=1, return_value="sent")
        failed = factory.Trait(
            ended=True, status="FAILED", attempts=4, errors=factory.LazyFunction(lambda: [error(attempt=4)])
        )
        cancelled = factory.Trait(
            status="CANCELLED",
            finished_at=factory.LazyFunction(lambda: ago(30)),
            cancel_requested_at=factory.LazyFunction(lambda: ago(30)),
        )

    id = factory.LazyFunction(new_id)
    backend = "default"
    queue_name = "default"
    task_type = "shop.tasks.send_receipt"
    status = "READY"
    max_attempts = 4
    enqueued_at = factory.LazyFunction(lambda: ago(60))
    rank = factory.LazyAttribute(lambda row: row.enqueued_at - timedelta(seconds=60 * row.priority))
    priority = 0


class PeriodFactory(UsingFactory[CounterPeriod]):
    """The counters of this minute. `hour=True`: of this hour."""

    class Meta:
        model = CounterPeriod

    class Params:
        hour = factory.Trait(
            length="hour", start=factory.LazyFunction(lambda: now().replace(minute=0, second=0, microsecond=0))
        )

    backend = "default"
    scope = "backend"
    name = ""
    length = "minute"
    start = factory.LazyFunction(lambda: now().replace(second=0, microsecond=0))


class ExecutorFactory(UsingFactory[Executor]):
    """An executor with its heartbeat: of a time, with a state, for example."""

    class Meta:
        model = Executor

    class Params:
        lost = factory.Trait(heartbeat=factory.LazyFunction(lambda: ago(1800)))

    id = factory.LazyFunction(uuid4)
    backend = "default"
    name = factory.Sequence(lambda n: f"web-{n + 1}")
    host = "web.example.org"
    pid = factory.Sequence(lambda n: 4000 + n)
    versions = factory.LazyFunction(lambda: {"python": "3.11.2", "django": "5.2"})
    queues = factory.LazyFunction(list)
    slots = 8
    started_at = factory.LazyFunction(lambda: ago(7200))
    heartbeat = factory.LazyFunction(lambda: ago(3))

    @classmethod
    def _create(cls, model_class: type[Executor], *args: Any, using: str = "default", **kwargs: Any) -> Executor:
        written = {name: kwargs.pop(name) for name in ("state", "waiting_for_connections", "problem") if name in kwargs}
        beat = Heartbeat(at=kwargs.pop("heartbeat"), **written)
        row = super()._create(model_class, *args, using=using, **kwargs)
        beat.executor = row
        Heartbeat.objects.using(using).bulk_create([beat])
        return row


class QueueFactory(UsingFactory[Queue]):
    class Meta:
        model = Queue

    class Params:
        paused = factory.Trait(paused_at=factory.LazyFunction(lambda: ago(600)), paused_by="anna")

    backend = "default"
    name = "default"


class MessageFactory(UsingFactory[InboxMessage]):
    class Meta:
        model = InboxMessage

    sent_at = factory.LazyFunction(lambda: ago(5))
    body = factory.LazyFunction(lambda: {"text": "hello"})


class EntryFactory(UsingFactory[JournalEntry]):
    """An entry of a journal: of a step that succeeded, unless other columns are given."""

    class Meta:
        model = JournalEntry

    name = factory.Sequence(lambda n: f"charge_card#{n + 2}")
    kind = "STEP"
    status = "SUCCESSFUL"
    attempts = 1
    started_at = factory.LazyFunction(lambda: ago(12))
    finished_at = factory.LazyAttribute(lambda row: None if row.status in ("WAITING", "RETRYING") else ago(10))


class ScheduleFactory(UsingFactory[Schedule]):
    """A schedule that people created. `declared` makes it one of the code, `retired` one that code no longer has."""

    class Meta:
        model = Schedule

    class Params:
        declared = factory.Trait(declared_at="shop/tasks.py:42")
        paused = factory.Trait(paused_at=factory.LazyFunction(lambda: ago(600)), paused_by="anna")
        retired = factory.Trait(
            declared=True, retired_at=factory.LazyFunction(lambda: ago(600)), due_at=None, next_at=None
        )

    backend = "default"
    name = factory.Sequence(lambda n: f"report-{n + 1}")
    task_type = "tests.tasks.add"
    new_task = factory.LazyAttribute(lambda row: template_of(row.task_type))
    expression = "0 8 * * 1-5"
    timezone = "Europe/Berlin"
    next_at = factory.LazyFunction(lambda: now() + timedelta(hours=2))
    due_at = factory.SelfAttribute("next_at")
    created_at = updated_at = factory.LazyFunction(lambda: ago(86_400))


class TickFactory(UsingFactory[ScheduleTick]):
    """A tick that became a task; with a `reason`, one that was skipped."""

    class Meta:
        model = ScheduleTick

    reason = ""
    tick_at = factory.LazyFunction(lambda: ago(60))
    last_at = recorded_at = factory.SelfAttribute("tick_at")
    task_id = factory.LazyAttribute(lambda tick: None if tick.reason else new_id())


def template_of(task_type: str, **columns: Any) -> dict[str, Any]:
    """Return a NewTask as the column `new_task` of a schedule."""
    values = {
        "task_type": task_type, "queue_name": "default", "priority": 0, "args": "[1]", "kwargs": "{}", "options": "{}",
    }  # fmt: skip
    return values | columns


def make_user(*permissions: str, is_superuser: bool = False) -> Any:
    """Create a staff user with permissions of the app, such as "view_task"."""
    User = get_user_model()
    user = User.objects.create_user(
        f"user-{uuid4().hex[:8]}", password="secret", is_staff=True, is_superuser=is_superuser
    )
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="jobqueue", codename__in=permissions))
    return user

"""The tables of tasks, messages, executors and queues."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobqueue.models.indexes import LimitKeyField, index, unique
from jobqueue.models.pauses import Pausable
from jobqueue.values import states
from jobqueue.values.ids import new_id

LIVE = [str(status) for status in states.LIVE]
FINAL = [str(status) for status in states.FINAL]
ISOLATION_LOSSES = 2  # a task that lost this many executors runs alone in its process; a change needs a migration


class TaskQuerySet(models.QuerySet["Task"]):
    """Filter tasks by state."""

    def ready(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.READY)

    def blocked(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.BLOCKED)

    def scheduled(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.SCHEDULED)

    def awaiting_code(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.AWAITING_CODE)

    def running(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.RUNNING)

    def suspended(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.SUSPENDED)

    def successful(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.SUCCESSFUL)

    def failed(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.FAILED)

    def cancelled(self) -> TaskQuerySet:
        return self.filter(status=Task.Status.CANCELLED)

    def live(self) -> TaskQuerySet:
        return self.filter(finished_at__isnull=True)

    def finished(self) -> TaskQuerySet:
        return self.filter(finished_at__isnull=False)


TaskManager = models.Manager.from_queryset(TaskQuerySet)


class Task(models.Model):
    """A task: what to run, its state and its result."""

    class Status(models.TextChoices):
        READY = states.Status.READY.value, _("Ready")
        BLOCKED = states.Status.BLOCKED.value, _("Blocked")
        SCHEDULED = states.Status.SCHEDULED.value, _("Scheduled")
        AWAITING_CODE = states.Status.AWAITING_CODE.value, _("Awaiting code")
        RUNNING = states.Status.RUNNING.value, _("Running")
        SUSPENDED = states.Status.SUSPENDED.value, _("Suspended")
        SUCCESSFUL = states.Status.SUCCESSFUL.value, _("Successful")
        FAILED = states.Status.FAILED.value, _("Failed")
        CANCELLED = states.Status.CANCELLED.value, _("Cancelled")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    queue_name = models.CharField(_("queue"), max_length=128, default="default")
    task_type = models.CharField(_("task"), max_length=500)
    priority = models.SmallIntegerField(_("priority"), default=0)
    rank = models.DateTimeField(
        _("rank"), help_text=_("Time of becoming ready, minus priority x AGING. The lowest rank is claimed first.")
    )

    args = models.JSONField(_("arguments"), default=list)
    kwargs = models.JSONField(_("keyword arguments"), default=dict)
    options = models.JSONField(_("options"), default=dict)
    metadata = models.JSONField(_("metadata"), default=dict)
    tags = models.JSONField(_("tags"), null=True)  # a list of texts; NULL without any. migrations/sql/tags.sql
    inner_state = models.JSONField(_("state"), null=True)
    key = models.CharField(_("key"), max_length=255, null=True)
    idempotency_key = models.CharField(_("idempotency key"), max_length=255, null=True)
    idempotency_digest = models.CharField(_("idempotency digest"), max_length=64, null=True)
    # No foreign key in the database: a parent may be pruned before its children.
    parent = models.ForeignKey(
        "self", models.DO_NOTHING, null=True, related_name="children", db_constraint=False, db_index=False
    )

    # No foreign key in the database: a check of it would lock the schedule's row.
    schedule = models.ForeignKey(
        "Schedule", models.DO_NOTHING, null=True, related_name="tasks", db_constraint=False, db_index=False
    )

    # A task with limits by key becomes BLOCKED where another task becomes READY. admit() makes it READY.
    concurrency_key = LimitKeyField(_("concurrency key"), max_length=560, null=True)
    concurrency_limit = models.IntegerField(_("concurrency limit"), null=True)
    count_while_retrying = models.BooleanField(_("count while retrying"), default=False, db_default=False)
    # Counts for its concurrency limit while it waits for a retry or for its rate. READY and RUNNING tasks count anyway.
    counts_while_waiting = models.BooleanField(_("counts while waiting"), default=False, db_default=False)
    rate_key = LimitKeyField(_("rate key"), max_length=560, null=True)
    rate_limit = models.IntegerField(_("rate limit"), null=True)
    rate_seconds = models.FloatField(_("rate in seconds"), null=True)
    # When its rate counted the start of its body, if that still ran then. NULL from its admission until then.
    start_counted_at = models.DateTimeField(_("start counted at"), null=True)
    # The task that has taken over the unique key. This one keeps the text, but holds the key no more.
    taken_over_by_id = models.UUIDField(_("key taken over by"), null=True)

    # Where executors run it. One that finds the function in the other pool corrects it.
    pool = models.CharField(
        _("pool"), max_length=8, default=states.PoolName.THREADS.value, db_default=states.PoolName.THREADS.value
    )
    status = models.CharField(_("status"), max_length=16, choices=Status.choices, default=Status.READY)
    wake_at = models.DateTimeField(_("next run"), null=True)
    # Of an AWAITING_CODE task: since when no executor that has claimed it could call it.
    awaits_code_since = models.DateTimeField(_("awaits code since"), null=True)
    expires_at = models.DateTimeField(_("expires at"), null=True)
    claimed_at = models.DateTimeField(_("claimed at"), null=True)
    claim_number = models.BigIntegerField(_("claim number"), default=0)
    executor_id = models.UUIDField(_("executor"), null=True)
    worker_ids = models.JSONField(_("workers"), default=list)
    attempts = models.IntegerField(_("attempts"), default=0)
    max_attempts = models.IntegerField(_("max attempts"), default=1)
    polls = models.BigIntegerField(_("polls"), default=0)
    unread_polls = models.IntegerField(_("unread polls"), default=0, db_default=0)
    stale_polls = models.IntegerField(_("stale polls"), default=0, db_default=0)
    timed_out = models.BooleanField(_("timed out"), default=False, db_default=False)
    timeout_at = models.DateTimeField(_("times out at"), null=True)
    executor_losses = models.IntegerField(_("executor losses"), default=0)
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True)

    errors = models.JSONField(_("errors"), default=list)
    cause = models.CharField(_("cause"), max_length=16, null=True)
    history = models.TextField(_("history"), null=True)
    return_value = models.JSONField(_("result"), null=True)

    enqueued_at = models.DateTimeField(_("enqueued at"))
    started_at = models.DateTimeField(_("started at"), null=True)
    last_attempted_at = models.DateTimeField(_("last attempted at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    parent_notified_at = models.DateTimeField(_("parent notified at"), null=True)

    objects = TaskManager()

    class Meta:
        db_table = "jobqueue_task"
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        default_permissions = ("delete", "view")
        permissions = [
            ("requeue_task", "Can requeue tasks"),
            ("cancel_task", "Can cancel tasks"),
            ("view_payload", "Can see arguments, results, state, messages and errors of tasks"),
            ("send_message", "Can send messages to tasks"),
            ("wake_task", "Can run scheduled and suspended tasks now"),
            ("submit_task", "Can submit tasks over HTTP"),
            ("enqueue_task", "Can enqueue tasks by hand"),
            ("change_journal", "Can give results, rewind, and end waits of workflows"),
        ]
        indexes = [
            index("task_ready", "backend", "queue_name", "pool", "rank", "id", status="READY"),
            index("task_wake_at", "backend", "wake_at", wake_at__isnull=False, status__in=["SCHEDULED", "SUSPENDED"]),
            index("task_running", "executor_id", "queue_name", "id", status="RUNNING"),
            # Tasks that run alone, because they lost executors.
            index(
                "task_isolated",
                "backend",
                "queue_name",
                "rank",
                "id",
                status="READY",
                executor_losses__gte=ISOLATION_LOSSES,
            ),
            # The sweep looks here for tasks with unread messages.
            index("task_suspended", "backend", "id", status="SUSPENDED"),
            index("task_failed", "task_type", "finished_at", status="FAILED"),
            # With a cause that is not NULL, so that no list of FAILED tasks uses it.
            index("task_cause", "backend", "cause", "finished_at", status="FAILED", cause__isnull=False),
            index("task_finished", "backend", "status", "finished_at", finished_at__isnull=False),
            # A repeated message to a key is recognized after the task has ended.
            index("task_ended_key", "backend", "key", finished_at__isnull=False, key__isnull=False),
            index("task_children", "parent", parent__isnull=False),
            index("task_schedule", "schedule", schedule__isnull=False, finished_at__isnull=True),
            # Counts waiting tasks. READY and RUNNING ones are counted by the indexes above.
            index("task_waiting", "backend", "queue_name", "status", status__in=["BLOCKED", "SCHEDULED", "SUSPENDED"]),
            # The tasks for which no executor has code, and the ends of their waits.
            index(
                "task_awaiting_code",
                "backend",
                "queue_name",
                "task_type",
                "awaits_code_since",
                "id",
                status="AWAITING_CODE",
            ),
            index("task_end_of_code_wait", "backend", "wake_at", status="AWAITING_CODE", wake_at__isnull=False),
            # The tasks of a concurrency key that count, and the BLOCKED ones, best rank first.
            index(
                "task_concurrency",
                "backend",
                "concurrency_key",
                "counts_while_waiting",
                "status",
                "rank",
                "id",
                concurrency_key__isnull=False,
                finished_at__isnull=True,
            ),
            # The BLOCKED tasks that wait for their rate, best rank first, and the admitted ones that have not started.
            models.Index(
                fields=["backend", "rate_key", "status", "rank", "id"],
                name="jobqueue_task_rated",
                condition=Q(rate_key__isnull=False)
                & (
                    Q(status="READY")
                    | Q(status="RUNNING", start_counted_at__isnull=True)
                    | Q(status="BLOCKED") & (Q(concurrency_key__isnull=True) | Q(counts_while_waiting=True))
                ),
            ),
        ]
        constraints = [
            unique(
                "task_key", "backend", "key", finished_at__isnull=True, key__isnull=False, taken_over_by_id__isnull=True
            ),
            unique("task_idempotency", "backend", "idempotency_key", idempotency_key__isnull=False),
            models.CheckConstraint(condition=Q(status__in=LIVE + FINAL), name="jobqueue_task_status"),
        ]

    def __str__(self) -> str:
        return f"{self.task_type} {self.id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise TypeError, because saving would overwrite the changes of executors with older values."""
        raise TypeError("Task.save() is not allowed. Use jobqueue.cancel(), jobqueue.requeue() or jobqueue.api.")

    @property
    def may_unblock_others(self) -> bool:
        """Whether other tasks may wait for its end: those with the same limit."""
        return not (self.concurrency_key is None and self.rate_key is None)

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None


class InboxMessage(models.Model):
    """A message to a task. The ids are the order of arrival."""

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(Task, models.CASCADE, related_name="inbox", db_index=False, verbose_name=_("task"))
    sender_id = models.UUIDField(_("sender"), null=True)
    body = models.JSONField(_("body"), null=True)
    child_status = models.CharField(_("status of child"), max_length=16, null=True)
    dedupe_key = models.CharField(_("dedupe key"), max_length=255, null=True)
    sent_at = models.DateTimeField(_("sent at"))
    consumed_at = models.DateTimeField(_("consumed at"), null=True)

    class Meta:
        db_table = "jobqueue_inboxmessage"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        default_permissions = ()
        indexes = [
            index("inbox_task", "task", "id"),
            index("inbox_unread", "task", "id", consumed_at__isnull=True),
        ]
        constraints = [
            unique("inbox_dedupe", "task", "dedupe_key", dedupe_key__isnull=False),
        ]

    def __str__(self) -> str:
        return f"message {self.pk} to {self.task_id}"


class Executor(models.Model):
    """A process that runs tasks, as it was at its start. Each start has a new id."""

    class State(models.TextChoices):
        RUNNING = "RUNNING", _("Running")
        PAUSED = "PAUSED", _("Paused")
        STOPPING = "STOPPING", _("Stopping")
        STOPPED = "STOPPED", _("Stopped")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    backend = models.CharField(_("backend"), max_length=64)
    name = models.CharField(_("name"), max_length=200)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process"))
    versions = models.JSONField(_("versions"), default=dict)
    queues = models.JSONField(_("queues"), default=list)
    queue_limits = models.JSONField(_("limits of queues"), default=dict)
    task_types = models.JSONField(_("tasks"), default=list)
    slots = models.IntegerField(_("slots"), default=0)  # threads
    async_slots = models.IntegerField(_("async slots"), default=0, db_default=0)
    started_at = models.DateTimeField(_("started at"))
    command = models.CharField(_("command"), max_length=16, default="", blank=True)

    class Meta:
        db_table = "jobqueue_executor"
        verbose_name = _("executor")
        verbose_name_plural = _("executors")
        default_permissions = ("view",)
        permissions = [("command_executor", "Can pause, resume and stop executors")]

    def __str__(self) -> str:
        return self.name


class Heartbeat(models.Model):
    """
    The last heartbeat of an executor, in a row that people have no reason to lock.

    No foreign key in the database: checking one would wait for a lock on the executor's row.
    """

    executor = models.OneToOneField(Executor, models.DO_NOTHING, primary_key=True, db_constraint=False)
    at = models.DateTimeField(_("last heartbeat"))
    state = models.CharField(_("state"), max_length=16, choices=Executor.State.choices, default=Executor.State.RUNNING)
    waiting_for_connections = models.IntegerField(_("waiting for connections"), default=0)  # async tasks, at most
    problem = models.TextField(_("problem"), null=True)  # why it makes no progress. None: it does

    class Meta:
        db_table = "jobqueue_heartbeat"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.executor_id} at {self.at}"


class Queue(Pausable):
    """Pause and limit of a queue. A queue without a row has neither."""

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    name = models.CharField(_("name"), max_length=128)
    max_running = models.PositiveIntegerField(_("limit of the queue"), null=True, blank=True)

    class Meta:
        db_table = "jobqueue_queue"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = [("pause_queue", "Can pause, resume and limit queues")]
        constraints = [
            unique("queue_name", "backend", "name"),
            models.CheckConstraint(
                condition=Q(max_running__isnull=True) | Q(max_running__gt=0), name="jobqueue_queue_max_running"
            ),
        ]

    def __str__(self) -> str:
        return self.name

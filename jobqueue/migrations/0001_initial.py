import uuid
from typing import Any

from django.db import migrations, models
from django.db.models import CheckConstraint, Q

from jobqueue.values.ids import new_id


def index(name: str, *fields: str, **condition: Any) -> models.Index:
    """Return an index on the rows that meet a condition."""
    return models.Index(fields=fields, name=f"jobqueue_{name}", condition=Q(**condition) if condition else None)


def unique(name: str, *fields: str, **condition: Any) -> models.UniqueConstraint:
    """Return a constraint: among the rows that meet a condition, the fields are unique."""
    where = Q(**condition) if condition else None
    return models.UniqueConstraint(fields=fields, name=f"jobqueue_{name}", condition=where)


ID = models.BigAutoField(primary_key=True, serialize=False)
STATUSES = ["READY", "BLOCKED", "SCHEDULED", "RUNNING", "SUSPENDED", "SUCCESSFUL", "FAILED", "CANCELLED"]
CHOICES = [(status, status.title()) for status in STATUSES]
WAITING = ["SCHEDULED", "SUSPENDED"]
LIMIT_KINDS = [("concurrency", "Concurrency"), ("rate", "Rate")]
STATES = [("RUNNING", "Running"), ("PAUSED", "Paused"), ("DRAINING", "Stopping"), ("STOPPED", "Stopped")]
TASK_INDEXES = [
    index("task_ready", "backend", "queue_name", "pool", "rank", "id", status="READY"),
    index("task_wake_at", "backend", "wake_at", status__in=WAITING, wake_at__isnull=False),
    index("task_running", "executor_id", "queue_name", "id", status="RUNNING"),
    index("task_isolated", "backend", "queue_name", "rank", "id", executor_losses__gte=2, status="READY"),
    index("task_suspended", "backend", "id", status="SUSPENDED"),
    index("task_failed", "task_type", "finished_at", status="FAILED"),
    index("task_cause", "backend", "cause", "finished_at", status="FAILED", cause__isnull=False),
    index("task_finished", "backend", "status", "finished_at", finished_at__isnull=False),
    index("task_ended_key", "backend", "key", finished_at__isnull=False, key__isnull=False),
    index("task_children", "parent", parent__isnull=False),
    index("task_schedule", "schedule", schedule__isnull=False, finished_at__isnull=True),
    index("task_waiting", "backend", "queue_name", "status", status__in=["BLOCKED", *WAITING]),
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
    models.Index(
        fields=["backend", "rate_key", "status", "rank", "id"],
        name="jobqueue_task_rate",
        condition=Q(rate_key__isnull=False)
        & (
            Q(status="READY")
            | Q(status="BLOCKED", predecessor_id__isnull=True)
            & (Q(concurrency_key__isnull=True) | Q(counts_while_waiting=True))
        ),
    ),
    index("task_rate_start", "backend", "rate_key", "last_attempted_at", rate_key__isnull=False),
]
TASK_CONSTRAINTS = [
    unique("task_key", "backend", "key", finished_at__isnull=True, key__isnull=False, successor_id__isnull=True),
    unique("task_idempotency", "backend", "idempotency_key", idempotency_key__isnull=False),
    CheckConstraint(condition=Q(status__in=STATUSES), name="jobqueue_task_status"),
]
INBOX_INDEXES = [
    index("inbox_task", "task", "id"),
    index("inbox_unread", "task", "id", consumed_at__isnull=True),
]
QUEUE_CONSTRAINTS = [
    unique("queue_name", "backend", "name"),
    CheckConstraint(condition=Q(max_running__isnull=True) | Q(max_running__gt=0), name="jobqueue_queue_max_running"),
]
OVERLAPS = [
    ("skip", "Skip the tick"),
    ("queue_one", "Let one tick wait"),
    ("allow", "Run both"),
    ("cancel_running", "Cancel the running task"),
]
CATCH_UPS = [("latest", "Run the last missed tick"), ("all", "Run each missed tick"), ("none", "Run none")]
TRIGGERS = [("schedule", "Schedule"), ("manual", "Run now"), ("backfill", "Backfill")]
SKIP_REASONS = [
    ("overlap", "The previous task had not ended"),
    ("paused", "The schedule was paused"),
    ("missed", "No executor was running"),
    ("key", "Another task had the key"),
]
SCHEDULE_INDEXES = [
    index("schedule_due", "backend", "due_at", due_at__isnull=False),
    index("schedule_waiting", "backend", "id", waiting_at__isnull=False),
]
TICK_CONSTRAINTS = [
    unique("scheduletick_once", "schedule", "tick_at", "trigger"),
    CheckConstraint(
        condition=Q(task_id__isnull=False, reason="") | Q(task_id__isnull=True) & ~Q(reason=""),
        name="jobqueue_scheduletick_outcome",
    ),
]
COUNTER_CONSTRAINTS = [unique("counter_total", "backend", "queue_name", "task_type")]
PERIOD_CONSTRAINTS = [unique("counter_period", "backend", "scope", "name", "length", "start")]


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", ID),
                ("backend", models.CharField(default="default", max_length=64, verbose_name="backend")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("task_type", models.CharField(max_length=500, verbose_name="task")),
                ("new_task", models.JSONField(default=dict, verbose_name="new task")),
                ("expression", models.CharField(max_length=255, verbose_name="expression")),
                ("timezone", models.CharField(blank=True, default="", max_length=64, verbose_name="time zone")),
                ("anchor_at", models.DateTimeField(blank=True, null=True, verbose_name="counted from")),
                ("starts_at", models.DateTimeField(blank=True, null=True, verbose_name="starts at")),
                ("ends_at", models.DateTimeField(blank=True, null=True, verbose_name="ends at")),
                ("jitter_seconds", models.FloatField(default=0.0, verbose_name="jitter in seconds")),
                (
                    "overlap",
                    models.CharField(choices=OVERLAPS, default="skip", max_length=16, verbose_name="overlap"),
                ),
                (
                    "catch_up",
                    models.CharField(choices=CATCH_UPS, default="latest", max_length=16, verbose_name="catch up"),
                ),
                ("max_catch_up", models.PositiveIntegerField(default=100, verbose_name="most ticks to catch up")),
                (
                    "catch_up_window_seconds",
                    models.FloatField(blank=True, null=True, verbose_name="catch up within seconds"),
                ),
                ("declared_at", models.CharField(blank=True, default="", max_length=500, verbose_name="declared at")),
                ("retired_at", models.DateTimeField(blank=True, null=True, verbose_name="retired at")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                ("paused_by", models.CharField(blank=True, default="", max_length=150, verbose_name="paused by")),
                ("pause_reason", models.CharField(blank=True, default="", max_length=255, verbose_name="reason")),
                ("resume_at", models.DateTimeField(blank=True, null=True, verbose_name="resumes at")),
                ("next_at", models.DateTimeField(null=True, verbose_name="next tick")),
                ("due_at", models.DateTimeField(null=True, verbose_name="due at")),
                ("waiting_at", models.DateTimeField(null=True, verbose_name="waiting tick")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("updated_at", models.DateTimeField(verbose_name="updated at")),
            ],
            options={
                "constraints": [unique("schedule_name", "backend", "name")],
                "db_table": "jobqueue_schedule",
                "indexes": SCHEDULE_INDEXES,
                "permissions": [
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run schedules now and backfill them"),
                ],
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
        migrations.CreateModel(
            name="ScheduleDeployment",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64)),
                ("digest", models.CharField(max_length=32)),
                ("applied_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [unique("scheduledeployment_once", "backend", "digest")],
                "db_table": "jobqueue_scheduledeployment",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="ScheduleTick",
            fields=[
                ("id", ID),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=models.deletion.CASCADE,
                        related_name="ticks",
                        to="jobqueue.schedule",
                    ),
                ),
                (
                    "trigger",
                    models.CharField(choices=TRIGGERS, default="schedule", max_length=16, verbose_name="trigger"),
                ),
                ("tick_at", models.DateTimeField(verbose_name="tick")),
                ("last_at", models.DateTimeField(verbose_name="last tick")),
                ("count", models.IntegerField(default=1, verbose_name="ticks")),
                ("task_id", models.UUIDField(null=True, verbose_name="task")),
                (
                    "reason",
                    models.CharField(
                        blank=True, choices=SKIP_REASONS, default="", max_length=16, verbose_name="reason"
                    ),
                ),
                ("recorded_at", models.DateTimeField(verbose_name="recorded at")),
            ],
            options={
                "constraints": TICK_CONSTRAINTS,
                "db_table": "jobqueue_scheduletick",
                "default_permissions": (),
                "indexes": [index("scheduletick_age", "recorded_at")],
                "verbose_name": "tick",
                "verbose_name_plural": "ticks",
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False)),
                ("backend", models.CharField(default="default", max_length=64, verbose_name="backend")),
                ("queue_name", models.CharField(default="default", max_length=128, verbose_name="queue")),
                ("task_type", models.CharField(max_length=500, verbose_name="task")),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                (
                    "rank",
                    models.DateTimeField(
                        help_text="Time of becoming ready, minus priority x AGING. The lowest rank is claimed first.",
                        verbose_name="rank",
                    ),
                ),
                ("args", models.JSONField(default=list, verbose_name="arguments")),
                ("kwargs", models.JSONField(default=dict, verbose_name="keyword arguments")),
                ("options", models.JSONField(default=dict, verbose_name="options")),
                ("metadata", models.JSONField(default=dict, verbose_name="metadata")),
                ("tags", models.JSONField(null=True, verbose_name="tags")),
                ("inner_state", models.JSONField(null=True, verbose_name="state")),
                ("key", models.CharField(max_length=255, null=True, verbose_name="key")),
                ("idempotency_key", models.CharField(max_length=255, null=True, verbose_name="idempotency key")),
                ("idempotency_digest", models.CharField(max_length=64, null=True, verbose_name="idempotency digest")),
                (
                    "parent",
                    models.ForeignKey(
                        "jobqueue.task",
                        models.DO_NOTHING,
                        null=True,
                        db_constraint=False,
                        db_index=False,
                        related_name="children",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        "jobqueue.schedule",
                        models.DO_NOTHING,
                        null=True,
                        db_constraint=False,
                        db_index=False,
                        related_name="tasks",
                    ),
                ),
                ("concurrency_key", models.CharField(max_length=560, null=True, verbose_name="concurrency key")),
                ("concurrency_limit", models.IntegerField(null=True, verbose_name="concurrency limit")),
                (
                    "hold_while_retrying",
                    models.BooleanField(db_default=False, default=False, verbose_name="hold while retrying"),
                ),
                (
                    "counts_while_waiting",
                    models.BooleanField(db_default=False, default=False, verbose_name="counts while waiting"),
                ),
                ("rate_key", models.CharField(max_length=560, null=True, verbose_name="rate key")),
                ("rate_limit", models.IntegerField(null=True, verbose_name="rate limit")),
                ("rate_seconds", models.FloatField(null=True, verbose_name="rate in seconds")),
                ("predecessor_id", models.UUIDField(null=True, verbose_name="starts after")),
                ("successor_id", models.UUIDField(null=True, verbose_name="followed by")),
                ("pool", models.CharField(db_default="threads", default="threads", max_length=8, verbose_name="pool")),
                (
                    "status",
                    models.CharField(choices=CHOICES, default="READY", max_length=16, verbose_name="status"),
                ),
                ("wake_at", models.DateTimeField(null=True, verbose_name="next run")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("claimed_at", models.DateTimeField(null=True, verbose_name="claimed at")),
                ("claim_number", models.BigIntegerField(default=0, verbose_name="claim number")),
                ("executor_id", models.UUIDField(null=True, verbose_name="executor")),
                ("worker_ids", models.JSONField(default=list, verbose_name="workers")),
                ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                ("max_attempts", models.IntegerField(default=1, verbose_name="max attempts")),
                ("polls", models.BigIntegerField(default=0, verbose_name="polls")),
                ("unread_polls", models.IntegerField(db_default=0, default=0, verbose_name="unread polls")),
                ("stale_polls", models.IntegerField(db_default=0, default=0, verbose_name="stale polls")),
                ("timed_out", models.BooleanField(db_default=False, default=False, verbose_name="timed out")),
                ("timeout_at", models.DateTimeField(null=True, verbose_name="times out at")),
                ("executor_losses", models.IntegerField(default=0, verbose_name="executor losses")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
                ("errors", models.JSONField(default=list, verbose_name="errors")),
                ("cause", models.CharField(max_length=16, null=True, verbose_name="cause")),
                ("history", models.TextField(null=True, verbose_name="history")),
                ("return_value", models.JSONField(null=True, verbose_name="result")),
                ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("last_attempted_at", models.DateTimeField(null=True, verbose_name="last attempted at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("parent_notified_at", models.DateTimeField(null=True, verbose_name="parent notified at")),
            ],
            options={
                "constraints": TASK_CONSTRAINTS,
                "db_table": "jobqueue_task",
                "indexes": TASK_INDEXES,
                "permissions": [
                    ("requeue_task", "Can requeue tasks"),
                    ("cancel_task", "Can cancel tasks"),
                    ("view_payload", "Can see arguments, results, state, messages and errors of tasks"),
                    ("send_message", "Can send messages to tasks"),
                    ("wake_task", "Can run scheduled and suspended tasks now"),
                    ("submit_task", "Can submit tasks over HTTP"),
                    ("enqueue_task", "Can enqueue tasks by hand"),
                ],
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "default_permissions": ("delete", "view"),
            },
        ),
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("id", ID),
                (
                    "task",
                    models.ForeignKey(
                        "jobqueue.task", models.CASCADE, related_name="inbox", db_index=False, verbose_name="task"
                    ),
                ),
                ("sender_id", models.UUIDField(null=True, verbose_name="sender")),
                ("body", models.JSONField(null=True, verbose_name="body")),
                ("child_status", models.CharField(max_length=16, null=True, verbose_name="status of child")),
                ("dedupe_key", models.CharField(max_length=255, null=True, verbose_name="dedupe key")),
                ("sent_at", models.DateTimeField(verbose_name="sent at")),
                ("consumed_at", models.DateTimeField(null=True, verbose_name="consumed at")),
            ],
            options={
                "constraints": [unique("inbox_dedupe", "task", "dedupe_key", dedupe_key__isnull=False)],
                "db_table": "jobqueue_inboxmessage",
                "indexes": INBOX_INDEXES,
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("id", ID),
                ("backend", models.CharField(default="default", max_length=64, verbose_name="backend")),
                ("kind", models.CharField(choices=LIMIT_KINDS, max_length=16, verbose_name="kind")),
                ("key", models.CharField(max_length=560, verbose_name="key")),
                ("number", models.PositiveIntegerField(verbose_name="limit")),
                ("changed_by", models.CharField(blank=True, default="", max_length=150, verbose_name="changed by")),
                ("reason", models.CharField(blank=True, default="", max_length=255, verbose_name="reason")),
                ("changed_at", models.DateTimeField(verbose_name="changed at")),
            ],
            options={
                "constraints": [
                    unique("limit_key", "backend", "kind", "key"),
                    CheckConstraint(condition=Q(number__gt=0), name="jobqueue_limit_number"),
                ],
                "db_table": "jobqueue_limit",
                "default_permissions": ("change", "view"),
                "verbose_name": "limit",
                "verbose_name_plural": "limits",
            },
        ),
        migrations.CreateModel(
            name="AdmissionRequest",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64)),
                ("kind", models.CharField(max_length=16)),
                ("key", models.CharField(max_length=560)),
                ("due_at", models.DateTimeField()),
            ],
            options={
                "db_table": "jobqueue_admissionrequest",
                "default_permissions": (),
                "indexes": [
                    index("admission_due", "backend", "due_at", "id"),
                    index("admission_key", "backend", "kind", "key", "due_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RateStart",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=560)),
                ("started_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "db_table": "jobqueue_ratestart",
                "default_permissions": (),
                "indexes": [
                    index("ratestart_key", "backend", "key", "started_at"),
                    index("ratestart_expires", "expires_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="KeyReservation",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=255)),
                ("task_id", models.UUIDField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "constraints": [unique("keyreservation_key", "backend", "key")],
                "db_table": "jobqueue_keyreservation",
                "default_permissions": (),
                "indexes": [index("keyreserv_expires", "expires_at")],
            },
        ),
        migrations.CreateModel(
            name="Executor",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=64, verbose_name="backend")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process")),
                ("versions", models.JSONField(default=dict, verbose_name="versions")),
                ("queues", models.JSONField(default=list, verbose_name="queues")),
                ("queue_limits", models.JSONField(default=dict, verbose_name="limits of queues")),
                ("task_types", models.JSONField(default=list, verbose_name="tasks")),
                ("slots", models.IntegerField(default=0, verbose_name="slots")),
                ("async_slots", models.IntegerField(db_default=0, default=0, verbose_name="async slots")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("heartbeat", models.DateTimeField(verbose_name="last heartbeat")),
                ("state", models.CharField(choices=STATES, default="RUNNING", max_length=16, verbose_name="state")),
                ("command", models.CharField(blank=True, default="", max_length=16, verbose_name="command")),
            ],
            options={
                "db_table": "jobqueue_executor",
                "permissions": [("command_executor", "Can pause, resume and stop executors")],
                "verbose_name": "executor",
                "verbose_name_plural": "executors",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="TaskProgress",
            fields=[
                ("task_id", models.UUIDField(primary_key=True, serialize=False)),
                ("claim_number", models.BigIntegerField()),
                ("done", models.FloatField()),
                ("total", models.FloatField(null=True)),
                ("note", models.CharField(max_length=200)),
                ("reported_at", models.DateTimeField()),
            ],
            options={"db_table": "jobqueue_taskprogress", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="TaskLog",
            fields=[
                ("id", ID),
                ("task_id", models.UUIDField()),
                ("claim_number", models.BigIntegerField()),
                ("dropped", models.BigIntegerField()),
                ("lines", models.TextField()),
            ],
            options={
                "db_table": "jobqueue_tasklog",
                "default_permissions": (),
                "constraints": [unique("tasklog_once", "task_id", "claim_number")],
            },
        ),
        migrations.CreateModel(
            name="FallbackHeartbeat",
            fields=[("id", ID), ("executor_id", models.UUIDField()), ("at", models.DateTimeField())],
            options={
                "db_table": "jobqueue_fallbackheartbeat",
                "default_permissions": (),
                "indexes": [index("fallback_heartbeat", "executor_id", "at")],
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("id", ID),
                ("backend", models.CharField(default="default", max_length=64, verbose_name="backend")),
                ("name", models.CharField(max_length=128, verbose_name="name")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                ("paused_by", models.CharField(blank=True, default="", max_length=150, verbose_name="paused by")),
                ("pause_reason", models.CharField(blank=True, default="", max_length=255, verbose_name="reason")),
                ("resume_at", models.DateTimeField(blank=True, null=True, verbose_name="resumes at")),
                ("max_running", models.PositiveIntegerField(blank=True, null=True, verbose_name="limit of the queue")),
            ],
            options={
                "constraints": QUEUE_CONSTRAINTS,
                "db_table": "jobqueue_queue",
                "permissions": [("pause_queue", "Can pause, resume and limit queues")],
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Counter",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64, verbose_name="backend")),
                ("queue_name", models.CharField(max_length=128, verbose_name="queue")),
                ("task_type", models.CharField(max_length=500, verbose_name="task")),
                ("submitted", models.BigIntegerField(default=0, verbose_name="submitted")),
                ("completed", models.BigIntegerField(default=0, verbose_name="completed")),
                ("failed", models.BigIntegerField(default=0, verbose_name="attempts failed")),
                ("retries", models.BigIntegerField(default=0, verbose_name="retries")),
                ("dead", models.BigIntegerField(default=0, verbose_name="tasks failed")),
                ("lost", models.BigIntegerField(default=0, verbose_name="executor losses")),
                ("ticks_enqueued", models.BigIntegerField(default=0, verbose_name="ticks enqueued")),
                ("ticks_overlap", models.BigIntegerField(default=0, verbose_name="ticks skipped: overlap")),
                ("ticks_paused", models.BigIntegerField(default=0, verbose_name="ticks skipped: paused")),
                ("ticks_missed", models.BigIntegerField(default=0, verbose_name="ticks skipped: missed")),
                ("ticks_key", models.BigIntegerField(default=0, verbose_name="ticks skipped: key")),
                ("wait_seconds", models.FloatField(default=0.0, verbose_name="seconds waited")),
                ("run_seconds", models.FloatField(default=0.0, verbose_name="seconds run")),
                ("lateness_seconds", models.FloatField(default=0.0, verbose_name="seconds late")),
                ("waits", models.JSONField(default=list, verbose_name="waits")),
                ("runs", models.JSONField(default=list, verbose_name="runs")),
                ("lateness", models.JSONField(default=list, verbose_name="lateness")),
            ],
            options={
                "constraints": COUNTER_CONSTRAINTS,
                "db_table": "jobqueue_counter",
                "default_permissions": (),
                "permissions": [("view_metrics", "Can see metrics over HTTP")],
                "verbose_name": "counter",
                "verbose_name_plural": "counters",
            },
        ),
        migrations.CreateModel(
            name="CounterPeriod",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64)),
                ("scope", models.CharField(max_length=8)),
                ("name", models.CharField(max_length=500)),
                ("length", models.CharField(max_length=8)),
                ("start", models.DateTimeField()),
                ("submitted", models.BigIntegerField(default=0)),
                ("attempts", models.BigIntegerField(default=0)),
                ("completed", models.BigIntegerField(default=0)),
                ("failed", models.BigIntegerField(default=0)),
                ("retries", models.BigIntegerField(default=0)),
                ("dead", models.BigIntegerField(default=0)),
                ("lost", models.BigIntegerField(default=0)),
                ("wait_seconds", models.FloatField(default=0.0)),
                ("run_seconds", models.FloatField(default=0.0)),
                ("waits", models.JSONField(default=list)),
                ("runs", models.JSONField(default=list)),
            ],
            options={
                "constraints": PERIOD_CONSTRAINTS,
                "db_table": "jobqueue_counterperiod",
                "default_permissions": (),
                "indexes": [index("counter_latest", "length", "start")],
            },
        ),
        migrations.CreateModel(
            name="CounterDelta",
            fields=[
                ("id", ID),
                ("backend", models.CharField(max_length=64)),
                ("queue_name", models.CharField(max_length=128)),
                ("task_type", models.CharField(max_length=500)),
                ("at", models.DateTimeField()),
                ("submitted", models.IntegerField(null=True)),
                ("completed", models.IntegerField(null=True)),
                ("failed", models.IntegerField(null=True)),
                ("retries", models.IntegerField(null=True)),
                ("dead", models.IntegerField(null=True)),
                ("lost", models.IntegerField(null=True)),
                ("ticks_enqueued", models.IntegerField(null=True)),
                ("ticks_overlap", models.IntegerField(null=True)),
                ("ticks_paused", models.IntegerField(null=True)),
                ("ticks_missed", models.IntegerField(null=True)),
                ("ticks_key", models.IntegerField(null=True)),
                ("attempts", models.IntegerField(null=True)),
                ("wait_bucket", models.SmallIntegerField(null=True)),
                ("run_bucket", models.SmallIntegerField(null=True)),
                ("lateness_bucket", models.SmallIntegerField(null=True)),
                ("wait_seconds", models.FloatField(null=True)),
                ("run_seconds", models.FloatField(null=True)),
                ("lateness_seconds", models.FloatField(null=True)),
            ],
            options={"db_table": "jobqueue_counterdelta", "default_permissions": ()},
        ),
    ]

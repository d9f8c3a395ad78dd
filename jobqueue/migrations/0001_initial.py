import uuid

import django.db.models.deletion
from django.db import migrations, models

from jobqueue.serialization.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
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
                ("queue_limits", models.JSONField(default=dict, verbose_name="concurrency limits")),
                ("slots", models.IntegerField(default=0, verbose_name="slots")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("heartbeat", models.DateTimeField(verbose_name="last heartbeat")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("RUNNING", "Running"),
                            ("PAUSED", "Paused"),
                            ("DRAINING", "Stopping"),
                            ("STOPPED", "Stopped"),
                        ],
                        default="RUNNING",
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                ("command", models.CharField(blank=True, default="", max_length=16, verbose_name="command")),
            ],
            options={
                "verbose_name": "executor",
                "verbose_name_plural": "executors",
                "db_table": "jobqueue_executor",
                "permissions": [("command_executor", "Can pause, resume and stop executors")],
            },
        ),
        migrations.CreateModel(
            name="CounterDelta",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
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
                ("attempts", models.IntegerField(null=True)),
                ("wait_bucket", models.SmallIntegerField(null=True)),
                ("run_bucket", models.SmallIntegerField(null=True)),
                ("wait_seconds", models.FloatField(null=True)),
                ("run_seconds", models.FloatField(null=True)),
            ],
            options={
                "db_table": "jobqueue_counterdelta",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("backend", models.CharField(default="default", max_length=64, verbose_name="backend")),
                ("name", models.CharField(max_length=128, verbose_name="name")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                ("paused_by", models.CharField(blank=True, default="", max_length=150, verbose_name="paused by")),
                ("pause_reason", models.CharField(blank=True, default="", max_length=255, verbose_name="reason")),
                ("resume_at", models.DateTimeField(blank=True, null=True, verbose_name="resumes at")),
                ("max_running", models.PositiveIntegerField(blank=True, null=True, verbose_name="concurrency limit")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "jobqueue_queue",
                "permissions": [("pause_queue", "Can pause, resume and limit queues")],
                "constraints": [
                    models.UniqueConstraint(fields=("backend", "name"), name="jobqueue_queue_name"),
                    models.CheckConstraint(
                        condition=models.Q(("max_running__isnull", True), ("max_running__gt", 0), _connector="OR"),
                        name="jobqueue_queue_max_running",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="FallbackHeartbeat",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("executor_id", models.UUIDField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "jobqueue_fallbackheartbeat",
                "default_permissions": (),
                "indexes": [models.Index(fields=["executor_id", "at"], name="jobqueue_fallback_heartbeat")],
            },
        ),
        migrations.CreateModel(
            name="Counter",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=64, verbose_name="backend")),
                ("queue_name", models.CharField(max_length=128, verbose_name="queue")),
                ("task_type", models.CharField(max_length=500, verbose_name="task")),
                ("minute", models.DateTimeField(null=True, verbose_name="minute")),
                ("submitted", models.BigIntegerField(default=0, verbose_name="submitted")),
                ("completed", models.BigIntegerField(default=0, verbose_name="completed")),
                ("failed", models.BigIntegerField(default=0, verbose_name="attempts failed")),
                ("retries", models.BigIntegerField(default=0, verbose_name="retries")),
                ("dead", models.BigIntegerField(default=0, verbose_name="tasks failed")),
                ("lost", models.BigIntegerField(default=0, verbose_name="executor losses")),
                ("wait_seconds", models.FloatField(default=0.0, verbose_name="seconds waited")),
                ("run_seconds", models.FloatField(default=0.0, verbose_name="seconds run")),
                ("waits", models.JSONField(default=list, verbose_name="waits")),
                ("runs", models.JSONField(default=list, verbose_name="runs")),
            ],
            options={
                "verbose_name": "counter",
                "verbose_name_plural": "counters",
                "db_table": "jobqueue_counter",
                "permissions": [("view_metrics", "Can see metrics over HTTP")],
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("minute__isnull", True)),
                        fields=("backend", "queue_name", "task_type"),
                        name="jobqueue_counter_total",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("minute__isnull", False)),
                        fields=("minute", "backend", "queue_name", "task_type"),
                        name="jobqueue_counter_minute",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
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
                ("inner_state", models.JSONField(null=True, verbose_name="state")),
                ("key", models.CharField(max_length=255, null=True, verbose_name="key")),
                ("idempotency_key", models.CharField(max_length=255, null=True, verbose_name="idempotency key")),
                ("idempotency_digest", models.CharField(max_length=64, null=True, verbose_name="idempotency digest")),
                ("pool", models.CharField(db_default="threads", default="threads", max_length=8, verbose_name="pool")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "Ready"),
                            ("SCHEDULED", "Scheduled"),
                            ("RUNNING", "Running"),
                            ("SUSPENDED", "Suspended"),
                            ("SUCCESSFUL", "Successful"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="READY",
                        max_length=16,
                        verbose_name="status",
                    ),
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
                ("return_value", models.JSONField(null=True, verbose_name="result")),
                ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("last_attempted_at", models.DateTimeField(null=True, verbose_name="last attempted at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("parent_notified_at", models.DateTimeField(null=True, verbose_name="parent notified at")),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="children",
                        to="jobqueue.task",
                        verbose_name="parent",
                    ),
                ),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "db_table": "jobqueue_task",
                "permissions": [
                    ("requeue_task", "Can requeue tasks"),
                    ("cancel_task", "Can cancel tasks"),
                    ("view_payload", "Can see arguments, results and state of tasks"),
                    ("send_message", "Can send messages to tasks"),
                    ("wake_task", "Can wake suspended tasks"),
                    ("submit_task", "Can submit tasks over HTTP"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "READY")),
                        fields=["backend", "queue_name", "pool", "rank", "id"],
                        name="jobqueue_task_ready",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["SCHEDULED", "SUSPENDED"]), ("wake_at__isnull", False)),
                        fields=["backend", "wake_at"],
                        name="jobqueue_task_wake_at",
                    ),
                    models.Index(
                        condition=models.Q(("status", "RUNNING")),
                        fields=["executor_id", "queue_name", "id"],
                        name="jobqueue_task_running",
                    ),
                    models.Index(
                        condition=models.Q(("executor_losses__gte", 2), ("status", "READY")),
                        fields=["backend", "queue_name", "rank", "id"],
                        name="jobqueue_task_isolated",
                    ),
                    models.Index(
                        condition=models.Q(("status", "SUSPENDED")),
                        fields=["backend", "id"],
                        name="jobqueue_task_suspended",
                    ),
                    models.Index(
                        condition=models.Q(("status", "FAILED")),
                        fields=["task_type", "finished_at"],
                        name="jobqueue_task_failed",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["backend", "status", "finished_at"],
                        name="jobqueue_task_finished",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False), ("key__isnull", False)),
                        fields=["backend", "key"],
                        name="jobqueue_task_ended_key",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)), fields=["parent"], name="jobqueue_task_children"
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["SCHEDULED", "SUSPENDED"])),
                        fields=["backend", "queue_name", "status"],
                        name="jobqueue_task_waiting",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("finished_at__isnull", True), ("key__isnull", False)),
                        fields=("backend", "key"),
                        name="jobqueue_task_key",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key__isnull", False)),
                        fields=("backend", "idempotency_key"),
                        name="jobqueue_task_idempotency",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["READY", "SCHEDULED", "RUNNING", "SUSPENDED", "SUCCESSFUL", "FAILED", "CANCELLED"],
                            )
                        ),
                        name="jobqueue_task_status",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("sender_id", models.UUIDField(null=True, verbose_name="sender")),
                ("body", models.JSONField(null=True, verbose_name="body")),
                ("child_status", models.CharField(max_length=16, null=True, verbose_name="status of child")),
                ("dedupe_key", models.CharField(max_length=255, null=True, verbose_name="dedupe key")),
                ("sent_at", models.DateTimeField(verbose_name="sent at")),
                ("consumed_at", models.DateTimeField(null=True, verbose_name="consumed at")),
                (
                    "task",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="inbox",
                        to="jobqueue.task",
                        verbose_name="task",
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "db_table": "jobqueue_inboxmessage",
                "indexes": [
                    models.Index(fields=["task", "id"], name="jobqueue_inbox_task"),
                    models.Index(
                        condition=models.Q(("consumed_at__isnull", True)),
                        fields=["task", "id"],
                        name="jobqueue_inbox_unread",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("dedupe_key__isnull", False)),
                        fields=("task", "dedupe_key"),
                        name="jobqueue_inbox_dedupe",
                    )
                ],
            },
        ),
    ]

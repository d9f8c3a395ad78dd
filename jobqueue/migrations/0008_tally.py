"""What happens to tasks is counted: the tally, and what transactions add to it."""

from importlib import import_module

from django.db import migrations, models

sql = import_module("jobqueue.migrations.0003_sql_functions")


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0007_limits_and_commands"),
    ]

    operations = [
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
                ("dead", models.BigIntegerField(default=0, verbose_name="failed for good")),
                ("lost", models.BigIntegerField(default=0, verbose_name="executors lost")),
                ("wait_seconds", models.FloatField(default=0.0, verbose_name="seconds waited")),
                ("run_seconds", models.FloatField(default=0.0, verbose_name="seconds run")),
                ("waits", models.JSONField(default=list, verbose_name="waits")),
                ("runs", models.JSONField(default=list, verbose_name="runs")),
            ],
            options={
                "verbose_name": "tally",
                "verbose_name_plural": "tallies",
                "db_table": "jobqueue_counter",
                "permissions": [("view_metrics", "Can see metrics over HTTP")],
                "default_permissions": (),
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
        migrations.AddConstraint(
            model_name="counter",
            constraint=models.UniqueConstraint(
                condition=models.Q(("minute__isnull", True)),
                fields=("backend", "queue_name", "task_type"),
                name="jobqueue_counter_total",
            ),
        ),
        migrations.AddConstraint(
            model_name="counter",
            constraint=models.UniqueConstraint(
                condition=models.Q(("minute__isnull", False)),
                fields=("minute", "backend", "queue_name", "task_type"),
                name="jobqueue_counter_minute",
            ),
        ),
        # Tasks created from SQL are counted too.
        migrations.RunPython(sql.run("create_task", "tally"), sql.run("tally_drop")),
    ]

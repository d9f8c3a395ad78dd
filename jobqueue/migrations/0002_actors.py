# Written by makemigrations; anew as long as nothing is released.

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="task",
            name="idle_polls",
            field=models.IntegerField(default=0, verbose_name="idle polls"),
        ),
        migrations.AddField(
            model_name="task",
            name="timed_out",
            field=models.BooleanField(default=False, verbose_name="timed out"),
        ),
        migrations.AlterModelOptions(
            name="task",
            options={
                "permissions": [
                    ("requeue_task", "Can requeue tasks"),
                    ("cancel_task", "Can cancel tasks"),
                    ("view_payload", "Can see arguments, results and state of tasks"),
                    ("send_message", "Can send messages to tasks"),
                    ("wake_task", "Can wake suspended tasks"),
                ],
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
            },
        ),
        migrations.RemoveIndex(
            model_name="task",
            name="jobqueue_task_failed",
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("status", "FAILED")),
                fields=["task_type", "finished_at"],
                name="jobqueue_task_failed",
            ),
        ),
    ]

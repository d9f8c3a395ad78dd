"""PostgreSQL only: storage parameters, SQL functions, comments on tables and columns."""

from django.db import migrations

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0001_initial")]

    operations = [
        migrations.RunPython(
            run_files("storage", "tags", "create_task", "send_to_task", "enqueue", "comments"),
            run_files("drop"),
        ),
    ]

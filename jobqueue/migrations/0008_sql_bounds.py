"""PostgreSQL only: jobqueue_create_task() checks names, keys and priorities as Python does."""

from django.db import migrations

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0007_task_taken_over_by")]

    operations = [migrations.RunPython(run_files("create_task"), migrations.RunPython.noop)]

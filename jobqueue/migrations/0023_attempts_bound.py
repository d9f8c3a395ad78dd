"""PostgreSQL only: jobqueue_create_task() checks max_attempts and timeout as Python does."""

from django.db import migrations

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0022_progress_note")]

    operations = [migrations.RunPython(run_files("create_task"), migrations.RunPython.noop)]

"""PostgreSQL only: check the status of a task with a constant array, and insert a plain task without variables."""

from django.db import migrations

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0019_journal")]

    operations = [migrations.RunPython(run_files("status", "enqueue_plain"), migrations.RunPython.noop)]

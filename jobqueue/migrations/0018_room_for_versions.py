"""PostgreSQL only: leave room for all versions of a new task on its page. Pages that exist stay as they are."""

from django.db import migrations

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0017_enqueue_plain")]

    operations = [migrations.RunPython(run_files("room"), migrations.RunPython.noop)]

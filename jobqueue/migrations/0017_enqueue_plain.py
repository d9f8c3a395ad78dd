"""PostgreSQL only: jobqueue_enqueue_plain() inserts plain tasks."""

from django.db import migrations

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0016_count_while_retrying")]

    operations = [migrations.RunPython(run_files("enqueue_plain"), migrations.RunPython.noop)]

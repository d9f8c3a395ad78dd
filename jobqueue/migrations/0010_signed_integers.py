"""The SQL functions refuse what Python cannot read back: it counts the sign of an integer among its digits."""

from importlib import import_module

from django.db import migrations

sql = import_module("jobqueue.migrations.0003_sql_functions")


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0009_task_running")]

    operations = [migrations.RunPython(sql.run("json_problem"), migrations.RunPython.noop)]

"""What enqueue() inserts with: a function of the server, which keeps its plans."""

from importlib import import_module

from django.db import migrations

sql = import_module("jobqueue.migrations.0003_sql_functions")


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0010_signed_integers")]

    operations = [migrations.RunPython(sql.run("enqueue"), sql.run("enqueue_drop"))]

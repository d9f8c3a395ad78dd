"""How many async tasks of an executor wait for database connections. An older executor does not say."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0012_planned_looks")]

    operations = [
        migrations.AddField(
            "executor",
            "waiting_for_connections",
            models.IntegerField("waiting for connections", default=0, db_default=0),
        ),
    ]

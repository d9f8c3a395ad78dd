from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0021_journal_permission")]

    operations = [migrations.AlterField("taskprogress", "note", models.TextField())]

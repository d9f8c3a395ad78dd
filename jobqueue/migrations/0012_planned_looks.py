"""Planned looks at rates, and urgent requests. A request without these columns is answered as before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0011_limit_key_order")]

    operations = [
        migrations.AddField("admissionrequest", "is_urgent", models.BooleanField(default=False, db_default=False)),
        migrations.AddField("admissionrequest", "number", models.IntegerField(null=True)),
    ]

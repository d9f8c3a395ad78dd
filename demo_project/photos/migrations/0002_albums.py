import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("photos", "0001_initial")]

    operations = [
        migrations.RenameModel("Upload", "Album"),
        migrations.RenameField("Photo", "upload", "album"),
        migrations.AlterModelOptions("Album", {"ordering": ["-created_at", "id"]}),
        migrations.RemoveField("Photo", "thumbnail_task_id"),
        migrations.RemoveField("Photo", "facts_task_id"),
        migrations.AddField("Album", "task_id", models.UUIDField(editable=False, null=True)),
        # Earlier uploads have no actor that could publish them, so they are PUBLISHED.
        migrations.AddField(
            "Album",
            "state",
            models.CharField(
                choices=[
                    ("GATHERING", "gathering"),
                    ("WAITING", "waiting for you"),
                    ("PUBLISHED", "published"),
                    ("DISCARDED", "discarded"),
                ],
                default="PUBLISHED",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            "Album",
            "state",
            models.CharField(
                choices=[
                    ("GATHERING", "gathering"),
                    ("WAITING", "waiting for you"),
                    ("PUBLISHED", "published"),
                    ("DISCARDED", "discarded"),
                ],
                default="GATHERING",
                max_length=16,
            ),
        ),
        migrations.AddField(
            "Album",
            "failures",
            models.JSONField(blank=True, default=dict, help_text="why, by the id of the photo"),
        ),
        migrations.AddField("Album", "reminders", models.PositiveSmallIntegerField(default=0)),
        migrations.AddField("Album", "reminded_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("Album", "decided_at", models.DateTimeField(blank=True, null=True)),
        migrations.CreateModel(
            name="ContactSheet",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("path", models.CharField(max_length=255)),
                ("width", models.PositiveIntegerField()),
                ("height", models.PositiveIntegerField()),
                ("photos", models.PositiveIntegerField(help_text="how many are on it")),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                (
                    "album",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="contact_sheet", to="photos.album"
                    ),
                ),
            ],
        ),
    ]

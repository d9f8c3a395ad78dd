from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("photos", "0002_albums")]

    operations = [migrations.RemoveField("Photo", "colours"), migrations.RemoveField("Photo", "exif")]

from django.apps import AppConfig


class PhotosConfig(AppConfig):
    name = "demo_project.photos"
    default_auto_field = "django.db.models.BigAutoField"

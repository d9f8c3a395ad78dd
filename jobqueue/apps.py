from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobqueue import checks, registry

        checks.register()
        registry.autodiscover()

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobqueue import checks

        checks.register()
        if not checks.check_task_framework():  # the check says what to install, better than a traceback would
            from jobqueue import registry

            registry.autodiscover()

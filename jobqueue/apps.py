from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        try:
            from jobqueue import checks as our_checks
            from jobqueue import registry
        except ImproperlyConfigured as error:  # Django 5.2 without the backport: compat.py
            missing = checks.Error(str(error), hint="pip install django-jobqueue[django52]", id="jobqueue.E001")
            checks.register(lambda **_: [missing])
        else:
            our_checks.register()
            registry.autodiscover()

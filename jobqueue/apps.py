from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks, mail
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models.signals import post_migrate
from django.utils.autoreload import DJANGO_AUTORELOAD_ENV
from django.utils.translation import gettext_lazy as _

from jobqueue.values import posix


class JobQueueConfig(AppConfig):
    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: Any) -> None:
        super().__init__(app_name, app_module)
        accept_early_stop()

    def ready(self) -> None:
        try:
            import psycopg  # noqa: F401 - the engine needs it, also on SQLite
        except ImportError as error:  # without libpq
            absent = checks.Error(
                f"psycopg cannot be used: {' '.join(str(error).split())}",
                hint="pip install 'psycopg[binary]', or install libpq, such as the package libpq5 of Debian.",
                id="jobqueue.E016",
            )
            checks.register(lambda **_: [absent])
            return
        try:
            from jobqueue.declarations import checks as our_checks
            from jobqueue.declarations import registry
        except ImproperlyConfigured as error:  # Django 5.2 without the backport: compat.py
            missing = checks.Error(str(error), hint="pip install 'django-tasks>=0.12'", id="jobqueue.E001")
            checks.register(lambda **_: [missing])
        else:
            our_checks.register_checks()
            registry.autodiscover()
            from jobqueue.api import batches  # noqa: F401 - declares our own tasks
            from jobqueue.declarations import canvas  # noqa: F401
            from jobqueue.operations.bulk import actor as bulk_actor  # noqa: F401

            if shim := sys.modules.get("jobqueue.contrib.celery"):  # code of the site uses it
                shim.finalize()

            checks.register(check_stored_names, checks.Tags.database)
            post_migrate.connect(install_sql, sender=self)
            post_migrate.connect(write_schedules, sender=self)
            embed_in_runserver()


def accept_early_stop() -> None:
    """
    Let SIGTERM end an executor while it still loads the site, if it is process 1 of a container.

    For process 1 a signal without a handler has no effect. The container would then wait, and kill it.
    """
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    is_main = threading.current_thread() is threading.main_thread()
    if os.getpid() == 1 and "run_executors" in sys.argv and is_default and is_main:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def embed_in_runserver() -> None:
    """Run tasks in `manage.py runserver`, with DEBUG, in the process that serves: not in that which restarts it."""
    serves = os.environ.get(DJANGO_AUTORELOAD_ENV) == "true" or "--noreload" in sys.argv
    if sys.argv[1:2] != ["runserver"] or not serves or not settings.DEBUG or posix.missing():
        return
    from jobqueue.declarations import checks as our_checks

    embedded = import_module("jobqueue.contrib.embedded")
    for alias in [backend.alias for backend in our_checks.sound_backends() if backend.settings.runserver]:
        embedded.start(backend=alias, shutdown_timeout=1.0, server="runserver")
        sys.stderr.write(f"runserver also runs the tasks of TASKS[{alias!r}], unless OPTIONS has RUNSERVER=False.\n")


def install_sql(*, using: str, plan: object = None, **_: Any) -> None:
    """
    Install SQL functions, comments and storage parameters after `migrate`, where our tables were made without them.

    They come with our migrations, which a site may switch off: MIGRATION_MODULES, pytest --no-migrations. A `flush` has
    no plan, and takes nothing away.
    """
    from jobqueue.engine import applied_migrations, known_migrations
    from jobqueue.migrations import sql

    if plan is not None and connections[using].vendor == "postgresql":
        available = known_migrations()
        if not available or applied_migrations(using) == available:  # not those of older or newer tables
            sql.install(connections[using])


def check_stored_names(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of unfinished tasks and schedules whose names this code does not have."""
    from jobqueue.operations.overview import code_findings  # a web process never loads it

    return code_findings.find_unknown_names(**kwargs)


def write_schedules(*, using: str, **_: Any) -> None:
    """
    Write the schedules that code declares to a database after `migrate`, as executors do when they start.

    Writes nothing in tests, so that they find empty tables, and nothing after `migrate jobqueue zero`.
    """
    from jobqueue.api.schedule_deployments import DeclaredSchedules
    from jobqueue.declarations import checks as our_checks
    from jobqueue.engine import engine_for, missing_migrations, missing_tables

    is_test = hasattr(mail, "outbox")  # made by django.test.utils.setup_test_environment()
    if is_test:
        return
    backends = [backend.alias for backend in our_checks.sound_backends() if backend.settings.database == using]
    if backends and not missing_tables(using) and not missing_migrations(using):
        for alias in backends:
            DeclaredSchedules.of(alias).synchronize(engine_for(alias))

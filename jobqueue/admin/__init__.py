"""The queue in Django's admin: pages of tasks, queues and executors, with actions. Rows are read-only."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured


def register() -> None:
    """Add the pages to Django's admin site."""
    from django.contrib import admin

    from jobqueue.admin.executors import ExecutorAdmin
    from jobqueue.admin.queues import QueueAdmin
    from jobqueue.admin.tasks import TaskAdmin
    from jobqueue.models import Executor, Queue, Task

    admin.site.register(Task, TaskAdmin)
    admin.site.register(Executor, ExecutorAdmin)
    admin.site.register(Queue, QueueAdmin)


try:
    from jobqueue import compat  # noqa: F401
except ImproperlyConfigured:
    pass  # without a task framework the system check explains the problem
else:
    if apps.is_installed("django.contrib.admin"):  # a site may use only the command line
        register()

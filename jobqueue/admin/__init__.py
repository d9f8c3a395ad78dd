"""
The queue in Django's admin. Rows are read-only, and actions call the API.

`tasks` is the task list with its bulk actions, on the fast change list of `task_list` and `filters`. `task_page` is
one task. `schedules`, `queues`, `limits` and `executors` are the other pages, `base` has what all of them need.

`overview` is the index of the app, with `charts`. `schedules` is the list of schedules, `schedule_page` is one of them.
`schedule_editor` has the pages of the form, which is `schedule_form` with `timing_form` (when it runs) and
`argument_fields` (the arguments of the task).
"""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured


def register() -> None:
    """Add the pages to Django's admin site."""
    from django.contrib import admin

    from jobqueue.admin.executors import ExecutorAdmin
    from jobqueue.admin.limits import LimitAdmin
    from jobqueue.admin.queues import QueueAdmin
    from jobqueue.admin.schedules import ScheduleAdmin
    from jobqueue.admin.tasks import TaskAdmin
    from jobqueue.models import Executor, Limit, Queue, Schedule, Task

    admin.site.register(Task, TaskAdmin)
    admin.site.register(Executor, ExecutorAdmin)
    admin.site.register(Queue, QueueAdmin)
    admin.site.register(Schedule, ScheduleAdmin)
    admin.site.register(Limit, LimitAdmin)


try:
    from jobqueue.conf import compat  # noqa: F401
except ImproperlyConfigured:
    pass  # without a task framework the system check explains the problem
else:
    if apps.is_installed("django.contrib.admin"):  # a site may use only the command line
        register()

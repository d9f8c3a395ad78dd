"""
The queue in Django's admin. Rows are read-only, and actions call the API.

* `argument_fields`: the arguments of a task as fields of a form, made from the signature of its function
* `base`: the base of all pages: they read the queue's database, and cannot edit rows
* `bulk_actions`: the actions of the task list: at once, after a confirmation, or as a task of the queue
* `charts`: charts as inline SVG: bars of successes and failures, and lines of waiting times
* `enqueue_page`: the page that enqueues a task by hand, or a copy of one with other arguments
* `executors`: executors, and the tasks that they run
* `extensions`: what a site adds to the admin: links and columns of tasks, and the tasks of an object on the
  object's own page
* `failures`: failures by cause: how many, since when, one traceback, and buttons for all tasks of a cause
* `filters`: filters of the task list
* `html`: small pieces of HTML, as functions and as filters of templates
* `journal_page`: the actions on a workflow: on an entry of its journal, and its termination
* `json_field`: A form's field for JSON
* `limits`: the keys of limits by key: which tasks wait, which number applies, and the form that changes it
* `links`: addresses of the admin's pages that a user may view
* `message_forms`: forms for the messages that an actor takes, or that a workflow waits for: one for each class
* `option_fields`: the fields of options that the forms of tasks and of schedules have
* `overview`: the overview at the index of the app: problems, numbers, charts, tasks and executors
* `queues`: the queues of a backend: ready and running tasks, pauses and limits
* `schedule_editor`: the pages that create and change schedules, and the preview of their ticks
* `schedule_form`: the form of a schedule
* `schedule_page`: A schedule's page, and what people do there: pause, resume, run now, backfill and delete
* `schedules`: the list of schedules and its bulk actions
* `summaries`: the pages of one task type and of one queue: charts, times, and the last failures
* `task_columns`: the columns of the task list, and which of them a user sees
* `task_list`: the task list: one page of a selection, with the rows that Django's change list shows
* `task_page`: A task's page and its actions
* `tasks`: the admin of tasks: its list, and the pages of which it is composed
* `timing_form`: when a schedule runs, as fields of a form, and the preview of it
* `workflows_page`: the page of all workflows: how many run on which version of the code, and what they wait for
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

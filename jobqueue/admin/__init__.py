"""The queue in Django's admin: look, requeue, cancel. Nothing here edits a row."""

from django.contrib import admin

from jobqueue.admin.executors import ExecutorAdmin
from jobqueue.admin.queues import QueueAdmin
from jobqueue.admin.tasks import TaskAdmin
from jobqueue.models import Executor, Queue, Task

__all__ = ["ExecutorAdmin", "QueueAdmin", "TaskAdmin"]

admin.site.register(Task, TaskAdmin)
admin.site.register(Executor, ExecutorAdmin)
admin.site.register(Queue, QueueAdmin)

"""
Functions that change the queue, for views, tasks, the admin and commands. `__all__` is public.

Each function takes the backend's alias where it matters. Ids are UUIDs or their text. Changes are made in the
caller's transaction, notifications and wake-ups after its commit.

* `backends`: which backend has a task, and the rows of children
* `batches`: tasks with common callbacks and progress
* `ends`: task_finished for tasks that end without an attempt: by a cancel, by a schedule that replaces them, by a
  rescue
* `limits`: set and reset the numbers of limits by key while the site runs, for one key or for all keys of a limit
* `messages`: send messages to actors
* `notifications`: wake tasks and notify waiting executors after a commit
* `queues`: pause and limit queues, and send commands to executors
* `schedule_deployments`: make the rows of schedules agree with the declarations of this code
* `schedules`: what people do with schedules: pause, resume, run now, backfill, and create or change their own
* `tasks`: cancel, requeue and wake tasks
* `waits`: wait for the end of a task
* `workflows`: change the journals of workflows, and end workflows without their compensations
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from jobqueue.api import ends as ends  # announces the ends of tasks
from jobqueue.api.messages import send, send_many
from jobqueue.api.queues import command, limit_queue, pause, resume
from jobqueue.api.tasks import cancel, delete, discard, requeue, run_now, wake
from jobqueue.api.waits import await_result, wait_for_result
from jobqueue.declarations.backends import aliases as aliases
from jobqueue.declarations.backends import declared_queues as declared_queues
from jobqueue.values.states import Command

P = ParamSpec("P")
R = TypeVar("R")


def as_async(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a coroutine function that runs a function on the database connections of synchronous code."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)

    return call


acancel, arequeue, awake = as_async(cancel), as_async(requeue), as_async(wake)
arun_now, adiscard, adelete = as_async(run_now), as_async(discard), as_async(delete)
asend, asend_many = as_async(send), as_async(send_many)
apause, aresume, alimit_queue = as_async(pause), as_async(resume), as_async(limit_queue)

__all__ = [
    "Command",
    "acancel",
    "adelete",
    "adiscard",
    "alimit_queue",
    "apause",
    "arequeue",
    "aresume",
    "arun_now",
    "asend",
    "asend_many",
    "await_result",
    "awake",
    "cancel",
    "command",
    "delete",
    "discard",
    "limit_queue",
    "pause",
    "requeue",
    "resume",
    "run_now",
    "send",
    "send_many",
    "wait_for_result",
    "wake",
]

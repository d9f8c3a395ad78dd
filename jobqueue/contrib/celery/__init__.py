"""
Celery's interface on this queue. It needs no Celery: change `from celery` to `from jobqueue.contrib.celery`.

docs/how-to-celery.md says what becomes of each name, and what is refused.

* `application`: the app, and shared_task()
* `canvas`: signatures, chains, groups and chords
* `conf`: the settings, CELERY_...
* `exceptions`: Celery's exceptions, and the refusal of what has no counterpart
* `options`: options of tasks and calls, and routes
* `payload`: arguments and results as JSON
* `registry`: the tasks by name, the current app and the current task
* `request`: `self.request`
* `result`: AsyncResult and its relatives
* `rows`: the rows of calls
* `schedules`: crontab() and CELERY_BEAT_SCHEDULE
* `signals`: task_prerun and its relatives
* `states`: the names of states
* `task`: Task: declared, called, run, retried
* `utils/`: get_task_logger() and uuid()
"""

from __future__ import annotations

from typing import Any

from jobqueue.contrib.celery.application import Celery, current_app, shared_task
from jobqueue.contrib.celery.application import finalize as finalize
from jobqueue.contrib.celery.canvas import (
    Signature,
    chain,
    chord,
    group,
    maybe_signature,
    signature,
    subtask,
)
from jobqueue.contrib.celery.exceptions import NotSupported, refuse
from jobqueue.contrib.celery.registry import current_task
from jobqueue.contrib.celery.task import Task
from jobqueue.contrib.celery.utils import uuid

app = current_app

__all__ = [
    "Celery",
    "NotSupported",
    "Signature",
    "Task",
    "app",
    "chain",
    "chord",
    "current_app",
    "current_task",
    "group",
    "maybe_signature",
    "shared_task",
    "signature",
    "subtask",
    "uuid",
]


def starmap(task: str, calls: list[list[Any]]) -> list[Any]:
    """Call a task here once for each list of arguments."""
    return [current_app.tasks[task](*call) for call in calls]


shared_task(name="celery.starmap", ignore_result=False)(starmap)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name in ("result", "states", "signals", "schedules", "exceptions", "conf"):
        raise AttributeError(name)
    raise refuse(f"celery.{name}")

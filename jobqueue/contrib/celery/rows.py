"""The rows of Celery's calls. Models are imported at the first use, because tasks are declared before they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import jobqueue

# The executor gives the first parameter, called `context`. So a parameter of a task with this name gets another one.
CONTEXT, RENAMED = "context", "context_"


def row_id(task_id: Any) -> UUID:
    """Return the id of the row of a task. Celery's ids may be any text."""
    try:
        return UUID(str(task_id))
    except ValueError:
        return uuid5(NAMESPACE_OID, str(task_id))


def rename_context(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments by the names of their parameters in jobqueue's task."""
    return {RENAMED if name == CONTEXT else name: value for name, value in kwargs.items()}


def queue_databases() -> list[str]:
    """Return the databases of the backends, the usual one first."""
    from jobqueue.api import aliases
    from jobqueue.conf.compat import task_backends

    backends: list[Any] = [task_backends[alias] for alias in aliases()]
    return list(dict.fromkeys(str(backend.settings.database) for backend in backends))


def read_task(task_id: Any) -> Any:
    """Return the row of a task, or None."""
    from jobqueue.models import Task

    rows = (Task.objects.using(name).filter(pk=row_id(task_id)).first() for name in queue_databases())
    return next(filter(None, rows), None)


def insert(task: jobqueue.FunctionTask[..., Any], args: Any, kwargs: Any, task_id: Any = None) -> str:
    """
    Enqueue jobqueue's task and return Celery's id.

    task_id: of the caller. The call takes the place of an ended task with this id. Raises DuplicateKey if a live task
    has it.
    """
    if task_id is None:
        return task.enqueue(*args, **kwargs).id
    from jobqueue import api

    earlier = read_task(task_id)
    if earlier is not None and earlier.finished_at is None:
        raise jobqueue.DuplicateKey(f"{task.name}: the live task {earlier.pk} has the task_id {str(task_id)!r}.")
    if earlier is not None:
        api.delete(earlier.pk)
    backend: Any = task.get_backend()
    backend.enqueue_as(task, args, kwargs, id=row_id(task_id))
    return str(task_id)

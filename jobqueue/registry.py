"""Which code belongs to which task_type. Declarations fill it; a name from a row never imports code."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import autodiscover_modules

from jobqueue import function
from jobqueue.records import PoolName
from jobqueue.serialization.arguments import Parameters, parameters_of

if TYPE_CHECKING:
    from jobqueue.function import Duplicate, FunctionTask


def get(task_type: str) -> FunctionTask[..., Any] | None:
    """Return the task declared under a name, or None if this process knows no such task."""
    return function.declared.tasks.get(task_type)


def parameters(task_type: str) -> Parameters | None:
    """Return the parameters of a task without its context, or None if this process knows no such task."""
    task = get(task_type)
    return None if task is None else parameters_of(task.func, task.takes_context)


def all() -> dict[str, FunctionTask[..., Any]]:  # noqa: A001 - reads as registry.all()
    """Return every declared task by its task_type, sorted."""
    return dict(sorted(function.declared.tasks.items()))


def pool_for(body: Callable[..., Any]) -> PoolName:
    """Return the pool that runs a task's function."""
    return PoolName.ASYNC if iscoroutinefunction(body) else PoolName.THREADS


def pool_of(task_type: str) -> PoolName | None:
    """Return the pool that runs a task, None when this process does not know it."""
    task = get(task_type)
    return None if task is None else pool_for(task.func)


def generation() -> object:
    """Return an object that every declaration replaces."""
    return function.declared.generation


def duplicates() -> list[Duplicate]:
    """Return the names that more than one function was declared under."""
    return sorted(function.declared.duplicates)


def autodiscover() -> None:
    """Import tasks.py and actors.py of every installed app."""
    autodiscover_modules("tasks", "actors")

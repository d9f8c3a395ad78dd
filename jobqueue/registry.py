"""Which code belongs to which task_type: filled as tasks are declared, never by a name from a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from jobqueue.payload import Parameters, parameters_of

if TYPE_CHECKING:
    from jobqueue.function import FunctionTask


class Duplicate(NamedTuple):
    """A name that two functions want; the first has it."""

    task_type: str
    first: str
    second: str


_tasks: dict[str, FunctionTask[..., Any]] = {}
_duplicates: set[Duplicate] = set()
_generation = object()


def declare(task: FunctionTask[..., Any]) -> None:
    """
    Enter a task under its task_type, unless its function is there already.

    A function of the same module and name takes the place of the one before: the module was reloaded.
    """
    global _generation
    known = _tasks.get(task.task_type)
    if known is None or (known.func is not task.func and known.module_path == task.module_path):
        _tasks[task.task_type] = task
        _generation = object()
    elif known.func is not task.func:
        _duplicates.add(Duplicate(task.task_type, known.module_path, task.module_path))


def get(task_type: str) -> FunctionTask[..., Any] | None:
    """Give the task declared under a name, None when this process knows no such task."""
    return _tasks.get(task_type)


def parameters(task_type: str) -> Parameters | None:
    """Give what a task takes, its context left out; None when this process knows no such task."""
    task = get(task_type)
    return None if task is None else parameters_of(task.func, task.takes_context)


def all() -> dict[str, FunctionTask[..., Any]]:  # noqa: A001 - reads as registry.all()
    """Give every declared task by its task_type, sorted."""
    return dict(sorted(_tasks.items()))


def generation() -> object:
    """Give an object that is another one after every declaration."""
    return _generation


def duplicates() -> list[Duplicate]:
    """Give the names that more than one function wants."""
    return sorted(_duplicates)


def autodiscover() -> None:
    """Import tasks.py and actors.py of every installed app."""
    try:
        from jobqueue import compat  # noqa: F401
    except ImproperlyConfigured:
        return  # the system check says so in better words than a traceback from somebody's tasks.py
    autodiscover_modules("tasks", "actors")

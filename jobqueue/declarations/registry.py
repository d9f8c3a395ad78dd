"""The declared code by task_type. Declarations fill it; a name from a row never imports code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Any

from django.utils.module_loading import autodiscover_modules

from jobqueue.declarations.function import FunctionTask, declared
from jobqueue.declarations.limits import Concurrency, Rate
from jobqueue.values.arguments import Parameters, read_parameters
from jobqueue.values.records import is_internal
from jobqueue.values.states import LimitKind, PoolName

DISCOVERED = ("tasks", "actors", "workflows")  # modules of each installed app that Django's setup imports
DISCOVERED_FILES = "tasks.py, actors.py or workflows.py"

# Returns the task declared under a name or an alias, or None if this process knows no such task.
get: Callable[[str], FunctionTask[..., Any] | None] = declared.get


def all() -> dict[str, FunctionTask[..., Any]]:  # noqa: A001 - reads as registry.all()
    """Return every declared task by its task_type, sorted."""
    return {name: task for name, task in by_name().items() if name not in task.aliases}


def by_name() -> dict[str, FunctionTask[..., Any]]:
    """Return every declared task by its task_type and by each alias: all names that rows may have, sorted."""
    return dict(sorted(declared.items()))


def name_now(task_type: str) -> str:
    """Return the name that new rows have instead of an alias. Any other name stays as it is."""
    task = get(task_type)
    return task.task_type if task is not None and task_type in task.aliases else task_type


def all_names_of(task_type: str) -> tuple[str, ...]:
    """Return all names of the task that has this one."""
    task = get(task_type)
    return (task_type,) if task is None else (task.task_type, *task.aliases)


def offered() -> dict[str, FunctionTask[..., Any]]:
    """Return the tasks that people may enqueue or schedule by name: those of the site, by their task_type, sorted."""
    return {task_type: task for task_type, task in all().items() if not is_internal(task_type)}


def parameters(task_type: str) -> Parameters | None:
    """Return the parameters of a task without its context, or None if this process knows no such task."""
    task = get(task_type)
    return None if task is None else read_parameters(task.func, task.takes_context)


@lru_cache(maxsize=4096)
def pool_for(body: Callable[..., Any]) -> PoolName:
    """Return the pool that runs a task's function."""
    return PoolName.ASYNC if iscoroutinefunction(body) else PoolName.THREADS


def autodiscover() -> None:
    """Import tasks.py, actors.py and workflows.py of every installed app."""
    autodiscover_modules(*DISCOVERED)


def declared_limits() -> dict[tuple[LimitKind, str], list[Concurrency | Rate]]:
    """Return the limits that tasks declare, by kind and name. Those of using() are not declared."""
    limits: dict[tuple[LimitKind, str], list[Concurrency | Rate]] = defaultdict(list)
    for task in all().values():
        for kind, limit in ((LimitKind.CONCURRENCY, task.concurrency), (LimitKind.RATE, task.rate)):
            if limit is not None:
                limits[kind, limit.shared or task.first_name].append(limit)
    return dict(limits)

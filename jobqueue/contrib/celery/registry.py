"""The tasks of Celery by name, the app whose settings apply, and the task that runs here."""

from __future__ import annotations

from typing import Any

from jobqueue.contrib.celery.exceptions import NotRegistered
from jobqueue.contrib.celery.request import innermost


class TaskRegistry(dict[str, Any]):
    """The tasks by name."""

    def register(self, task: Any) -> None:
        """Declare a task."""
        current[0].register_task(task)


tasks = TaskRegistry()
current: list[Any] = []  # the app, at most one


class _CurrentApp:
    """Stands for the current app, which may change."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(current[0], name, value)


class _CurrentTask:
    """Stands for the task that runs here. It is false outside of a run."""

    def __getattr__(self, name: str) -> Any:
        return getattr(innermost()[0], name)

    def __bool__(self) -> bool:
        return innermost()[0] is not None


current_app: Any = _CurrentApp()
current_task: Any = _CurrentTask()


def task_by_name(name: str) -> Any:
    """Return a task. Raises NotRegistered if this process has none of this name."""
    if name not in tasks:
        raise NotRegistered(
            f"{name}: this process knows no task of this name. Import the module that declares it, or declare it there "
            "with @shared_task."
        )
    return tasks[name]

"""
A task queue for Django that lives in its PostgreSQL database.

Everything here can be imported before the apps are loaded; a name is looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobqueue.api import cancel as cancel
    from jobqueue.api import requeue as requeue
    from jobqueue.backoff import Backoff as Backoff
    from jobqueue.exceptions import GiveUp as GiveUp
    from jobqueue.exceptions import InvalidArguments as InvalidArguments
    from jobqueue.exceptions import Retry as Retry
    from jobqueue.exceptions import Stale as Stale
    from jobqueue.exceptions import TaskFinished as TaskFinished
    from jobqueue.exceptions import TaskNotFound as TaskNotFound
    from jobqueue.function import FunctionTask as FunctionTask
    from jobqueue.function import task as task

__version__ = "0.1.0"

_HOMES = {
    "Backoff": "jobqueue.backoff",
    "FunctionTask": "jobqueue.function",
    "GiveUp": "jobqueue.exceptions",
    "InvalidArguments": "jobqueue.exceptions",
    "Retry": "jobqueue.exceptions",
    "Stale": "jobqueue.exceptions",
    "TaskFinished": "jobqueue.exceptions",
    "TaskNotFound": "jobqueue.exceptions",
    "cancel": "jobqueue.api",
    "requeue": "jobqueue.api",
    "task": "jobqueue.function",
}

__all__ = [
    "Backoff",
    "FunctionTask",
    "GiveUp",
    "InvalidArguments",
    "Retry",
    "Stale",
    "TaskFinished",
    "TaskNotFound",
    "__version__",
    "cancel",
    "requeue",
    "task",
]


# The annotation is for type checkers: with it, a misspelt name would be Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'jobqueue' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

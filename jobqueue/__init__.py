"""
A task queue for Django that lives in its PostgreSQL database.

Everything here can be imported before the apps are loaded; a name is looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobqueue.actions import Done as Done
    from jobqueue.actions import Kind as Kind
    from jobqueue.actions import Message as Message
    from jobqueue.actions import Send as Send
    from jobqueue.actions import Sleep as Sleep
    from jobqueue.actions import Spawn as Spawn
    from jobqueue.actions import Suspend as Suspend
    from jobqueue.actions import Yield as Yield
    from jobqueue.actor import Actor as Actor
    from jobqueue.actor import PollContext as PollContext
    from jobqueue.api import acancel as acancel
    from jobqueue.api import arequeue as arequeue
    from jobqueue.api import asend as asend
    from jobqueue.api import asend_many as asend_many
    from jobqueue.api import cancel as cancel
    from jobqueue.api import requeue as requeue
    from jobqueue.api import send as send
    from jobqueue.api import send_many as send_many
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
    "Actor": "jobqueue.actor",
    "Backoff": "jobqueue.backoff",
    "Done": "jobqueue.actions",
    "FunctionTask": "jobqueue.function",
    "GiveUp": "jobqueue.exceptions",
    "InvalidArguments": "jobqueue.exceptions",
    "Kind": "jobqueue.actions",
    "Message": "jobqueue.actions",
    "PollContext": "jobqueue.actor",
    "Retry": "jobqueue.exceptions",
    "Send": "jobqueue.actions",
    "Sleep": "jobqueue.actions",
    "Spawn": "jobqueue.actions",
    "Stale": "jobqueue.exceptions",
    "Suspend": "jobqueue.actions",
    "TaskFinished": "jobqueue.exceptions",
    "TaskNotFound": "jobqueue.exceptions",
    "Yield": "jobqueue.actions",
    "acancel": "jobqueue.api",
    "arequeue": "jobqueue.api",
    "asend": "jobqueue.api",
    "asend_many": "jobqueue.api",
    "cancel": "jobqueue.api",
    "requeue": "jobqueue.api",
    "send": "jobqueue.api",
    "send_many": "jobqueue.api",
    "task": "jobqueue.function",
}

__all__ = [
    "Actor",
    "Backoff",
    "Done",
    "FunctionTask",
    "GiveUp",
    "InvalidArguments",
    "Kind",
    "Message",
    "PollContext",
    "Retry",
    "Send",
    "Sleep",
    "Spawn",
    "Stale",
    "Suspend",
    "TaskFinished",
    "TaskNotFound",
    "Yield",
    "__version__",
    "acancel",
    "arequeue",
    "asend",
    "asend_many",
    "cancel",
    "requeue",
    "send",
    "send_many",
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

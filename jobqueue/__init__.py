"""
A task queue for Django that lives in its PostgreSQL database.

Modules import from here before the apps are loaded. Each name is looked up at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobqueue.api import acancel, arequeue, asend, asend_many, cancel, requeue, send, send_many
    from jobqueue.api.batches import Batch, BatchProgress
    from jobqueue.declarations.actions import Done, Kind, Message, Send, Sleep, Spawn, Suspend, Yield
    from jobqueue.declarations.actor import Actor, PollContext
    from jobqueue.declarations.canvas import chain, chord, group
    from jobqueue.declarations.function import FunctionTask, PlannedCall, task
    from jobqueue.declarations.limits import Concurrency, Debounce, Rate
    from jobqueue.declarations.schedules import schedule
    from jobqueue.declarations.step import step, step_key
    from jobqueue.declarations.workflow import workflow
    from jobqueue.declarations.workflow_context import AsyncWorkflowContext, Handle, WorkflowContext
    from jobqueue.exceptions import (
        ChildFailed,
        DuplicateKey,
        GiveUp,
        InvalidArguments,
        NonDeterminism,
        Retry,
        Stale,
        StepFailed,
        TaskFinished,
        TaskNotFound,
        WorkflowCancelled,
    )
    from jobqueue.schedules.expressions import Cron, Every
    from jobqueue.values.backoff import Backoff
    from jobqueue.values.changes import CancelReport, RequeueReport
    from jobqueue.values.states import Status

__version__ = "0.1.0"

_NAMES = {
    "jobqueue.declarations.actions": ("Done", "Kind", "Message", "Send", "Sleep", "Spawn", "Suspend", "Yield"),
    "jobqueue.declarations.actor": ("Actor", "PollContext"),
    "jobqueue.api": ("acancel", "arequeue", "asend", "asend_many", "cancel", "requeue", "send", "send_many"),
    "jobqueue.api.batches": ("Batch", "BatchProgress"),
    "jobqueue.declarations.canvas": ("chain", "chord", "group"),
    "jobqueue.values.backoff": ("Backoff",),
    "jobqueue.declarations.schedules": ("schedule",),
    "jobqueue.declarations.step": ("step", "step_key"),
    "jobqueue.declarations.workflow": ("workflow",),
    "jobqueue.declarations.workflow_context": ("AsyncWorkflowContext", "Handle", "WorkflowContext"),
    "jobqueue.exceptions": (
        "ChildFailed",
        "DuplicateKey",
        "GiveUp",
        "InvalidArguments",
        "NonDeterminism",
        "Retry",
        "Stale",
        "StepFailed",
        "TaskFinished",
        "TaskNotFound",
        "WorkflowCancelled",
    ),
    "jobqueue.declarations.function": ("FunctionTask", "PlannedCall", "task"),
    "jobqueue.declarations.limits": ("Concurrency", "Debounce", "Rate"),
    "jobqueue.values.changes": ("CancelReport", "RequeueReport"),
    "jobqueue.values.states": ("Status",),
    "jobqueue.schedules.expressions": ("Cron", "Every"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [  # noqa: RUF022 - by module
    "__version__",
    "Done", "Kind", "Message", "Send", "Sleep", "Spawn", "Suspend", "Yield",
    "Actor", "PollContext",
    "acancel", "arequeue", "asend", "asend_many", "cancel", "requeue", "send", "send_many",
    "Batch", "BatchProgress",
    "chain", "chord", "group",
    "Backoff",
    "schedule",
    "AsyncWorkflowContext", "Handle", "WorkflowContext", "step", "step_key", "workflow",
    "ChildFailed", "DuplicateKey", "GiveUp", "InvalidArguments", "NonDeterminism", "Retry", "Stale",
    "StepFailed", "TaskFinished", "TaskNotFound", "WorkflowCancelled",
    "FunctionTask", "PlannedCall", "task",
    "Concurrency", "Debounce", "Rate",
    "CancelReport", "RequeueReport", "Status",
    "Cron", "Every",
]  # fmt: skip


# The annotation is for type checkers: with it, a misspelt name would be Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'jobqueue' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

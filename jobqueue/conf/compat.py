"""
Django's task framework, or its backport.

Only this module knows that Django 5.2 needs the `django-tasks` backport. Both may be installed, and their classes are
unrelated, so all other modules import from here. The import raises ImproperlyConfigured if there is neither.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal

# Type checkers use Django's own names with both versions.
if TYPE_CHECKING or find_spec("django.tasks") is not None:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_PRIORITY,
        DEFAULT_TASK_QUEUE_NAME,
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued, task_finished, task_started

    PACKAGE = "django.tasks"
elif find_spec("django_tasks") is not None:
    from django_tasks import exceptions as _exceptions
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_PRIORITY,
        DEFAULT_TASK_QUEUE_NAME,
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch

    # The import also connects the reset of the backends on a change of settings, which
    # "django_tasks" in INSTALLED_APPS would do.
    from django_tasks.signals import task_enqueued, task_finished, task_started

    # Up to 0.12 the backport's names end in Error.
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
    InvalidTaskBackend = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError

    PACKAGE = "django_tasks"
else:
    raise ImproperlyConfigured(
        "Django before 6.0 has no task framework, and the django-tasks package, which brings it, is not "
        "installed. Run: pip install 'django-tasks>=0.12'"
    )

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "PACKAGE",
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "is_heard",
    "is_received",
    "load_backends",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
    "without_own_receivers",
]  # fmt: skip


_logger = logging.getLogger(PACKAGE)
_own_receivers = {
    id(value) for name, value in vars(import_module(f"{PACKAGE}.signals")).items() if name.startswith("log_task_")
}


def load_backends() -> tuple[dict[str, Any], dict[str, str]]:
    """
    Return the backends of TASKS by alias, and why others cannot be made.

    Loops over backends use this: `task_backends.all()` fails for all because of one that cannot be imported.
    """
    backends, errors = {}, {}
    for alias in task_backends:
        try:
            backends[alias] = task_backends[alias]
        except Exception as error:  # noqa: BLE001 - any package may have a backend, and raise what it likes
            is_plain = isinstance(error, ImproperlyConfigured)
            errors[alias] = f"{error}" if is_plain else f"{type(error).__name__}: {error}"
    return backends, errors


def is_heard(signal: Any, level: int) -> bool:
    """
    Return whether a signal has a receiver beside the framework's own, or the framework logs at this level.

    Signals without receivers are not sent: a TaskResult and a signal take 13 us.
    """
    return _logger.isEnabledFor(level) or is_received(signal)


def is_received(signal: Any) -> bool:
    """Return whether a signal has a receiver beside the framework's own."""
    for entry in signal.receivers:  # noqa: SIM110 - with any() it takes twice as long, twice per task
        if entry[0][0] not in _own_receivers:
            return True
    return False


def without_own_receivers(signal: Signal) -> Signal:
    """Return a signal with the same receivers, but without the framework's own."""
    copy = Signal()
    copy.receivers = [entry for entry in signal.receivers if entry[0][0] not in _own_receivers]
    return copy

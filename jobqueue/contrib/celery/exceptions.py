"""Celery's exceptions, by the names that a site imports from celery.exceptions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import OperationalError as OperationalError  # if the database cannot be reached
from django.utils import timezone

import jobqueue.exceptions as ours

PAGE = "docs/how-to-celery.md"


class CeleryError(Exception):
    """Base class of Celery's errors."""


class NotSupported(CeleryError, ours.JobQueueError, NotImplementedError):
    """A name of Celery has no counterpart. The message has the name, and the page with what to do instead."""


def refuse(what: str, instead: str = "") -> NotSupported:
    """Return the error for a name of Celery. what: the name. instead: a sentence about what to do."""
    return NotSupported(f"{what} has no counterpart in jobqueue. {instead}{' ' * bool(instead)}See {PAGE}.")


class Retry(CeleryError, ours.Retry):
    """The task asks for a retry. when: seconds from now, or a datetime. exc: the reason."""

    def __init__(
        self,
        message: str | None = None,
        exc: Any = None,
        when: float | datetime | None = None,
        is_eager: bool = False,
        sig: Any = None,
        *,
        max_attempts: int | None = None,
    ) -> None:
        self.exc, self.when, self.is_eager, self.sig = exc, when, is_eager, sig
        moment = f"in {when}s" if not isinstance(when, datetime) else f"at {when}"
        text = message or f"Retry {moment}" + (f": {exc!r}" if exc else "")
        after = (when - timezone.now()).total_seconds() if isinstance(when, datetime) else when
        ours.Retry.__init__(self, text, after=after, max_attempts=max_attempts)


class Ignore(CeleryError):
    """The task ends here. It has no result, and nothing is called after it."""


class Reject(CeleryError):
    """The task ends FAILED here; with requeue, it runs again at once."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason, self.requeue = reason, requeue


class TaskError(CeleryError):
    """Base class of the errors about a task."""


class NotRegistered(KeyError, TaskError):
    """No task of this name is declared in this process."""


class TimeoutError(TaskError):  # noqa: A001 - Celery's name
    """The task did not end in time."""


class TaskRevokedError(TaskError):
    """The task was revoked, so it has no result."""


class MaxRetriesExceededError(TaskError):
    """The task has been retried max_retries times."""

    def __init__(self, *args: Any, task_args: Any = (), task_kwargs: Any = None) -> None:
        super().__init__(*args)
        self.task_args, self.task_kwargs = task_args, task_kwargs or {}


# What an executor raises in a body after its time limit. It is no Exception, so `except Exception` does not catch it.
SoftTimeLimitExceeded = TimeLimitExceeded = ours.TaskTimeout
ChordError = ours.ChildFailed

"""Errors of the queue. The docstring of each class is its default message."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import ProgrammingError


class JobQueueError(Exception):
    """Something went wrong in the job queue."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class NotMigrated(JobQueueError, ProgrammingError):
    """The database lacks tables or functions of django-jobqueue: run manage.py migrate."""


class InvalidArguments(JobQueueError, ValueError, TypeError):
    """The function does not take these arguments, or they are not JSON."""


class PayloadTooLarge(InvalidArguments):
    """The arguments of a task take more than MAX_PAYLOAD_BYTES."""


class TaskNotFound(JobQueueError, LookupError):
    """There is no such task."""


class ScheduleNotFound(JobQueueError, LookupError):
    """There is no such schedule."""


class LimitNotFound(JobQueueError):
    """No limit has the key."""


class ScheduleChanged(JobQueueError):
    """The schedule was changed after the caller read it."""


class RestoreFailed(JobQueueError):
    """A class of OPTIONS["MIDDLEWARE"] could not restore the value of a row, so the body was not called."""


class TaskFinished(JobQueueError):
    """The task has ended and takes no messages."""


class Retry(JobQueueError):
    """
    Raised by a body that wants to run again. It uses an attempt, as any error does.

    after: seconds or a timedelta to wait instead of the task's backoff. A negative value means now. max_attempts: the
    number of attempts, the first included, instead of the task's.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        after: float | timedelta | None = None,
        max_attempts: int | None = None,
    ) -> None:
        super().__init__(message or "The task asked for a retry.")
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        is_number = issubclass(type(seconds), int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and seconds < math.inf):
            raise ValueError(f"Retry(after=...) must be a number of seconds or a timedelta, not {after!r}")
        self.after = None if seconds is None else max(0.0, seconds)
        self.max_attempts = max_attempts


class GiveUp(JobQueueError):
    """The task gave up. It is FAILED, even if attempts are left."""


class MembersFailed(GiveUp):
    """Members of the batch were FAILED or CANCELLED."""


class ChangeRefused(JobQueueError):
    """The journal of the workflow cannot be changed in this way."""


class Stale(JobQueueError):
    """The data that the poll read has changed. The actor is polled again."""


class DuplicateKey(JobQueueError):
    """Another live task holds the key. This transaction cannot see it."""


class MessageAlreadyConsumed(JobQueueError):
    """Another poll has consumed a message of the inbox. Nothing was committed."""


class InvalidActions(JobQueueError, TypeError):
    """A poll returned something other than actions."""


class UndecodableMessage(JobQueueError, ValueError):
    """A message of the inbox is not what the actor's `Message` allows."""


class UnknownTask(JobQueueError):
    """The executor knows no task of this name. The task waits for code."""


class UnboundCall(JobQueueError):
    """The code does not take the stored arguments or state. The task waits for code that does."""


class Expired(JobQueueError):
    """The task was not started before it expired."""


class ExecutorLost(JobQueueError):
    """Too many executors were lost while they ran the task."""


class UndecodableTask(JobQueueError):
    """The stored arguments of the task cannot be read."""


class InvalidResult(JobQueueError, TypeError):
    """The return value of the task cannot be stored."""


class Interrupted(BaseException):
    """
    The task was interrupted.

    Not an `Exception`, so that a body's `except Exception` does not catch it.
    """

    def __str__(self) -> str:
        return super().__str__() or (type(self).__doc__ or "").strip()


class TaskTimeout(Interrupted):
    """The task ran longer than its timeout."""


class TaskCancelled(Interrupted):
    """The task was cancelled while it ran."""


class ShuttingDown(Interrupted):
    """The executor stops and releases the task."""


class ClaimLost(Interrupted):
    """The executor lost its claim on the task, which may run elsewhere."""


class ProcessEnded(JobQueueError):
    """The process of a body has ended before the body: a crash, os._exit(), or too much memory."""


class StepFailed(JobQueueError):
    """
    A step of a workflow has failed in its last attempt.

    name: of the step in the journal. attempts: how many it had. error: of the last one, a dict as in the `errors` of a
    task.
    """

    def __init__(self, name: str, attempts: int, error: Mapping[str, Any]) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"Step {name} failed {times}: {describe_stored(error)}")
        self.name, self.attempts, self.error = name, attempts, error


class ChildFailed(JobQueueError):
    """
    A child of a workflow was FAILED or CANCELLED.

    name: of the child in the journal. child_id: its task. error: its last one, a dict as in the `errors` of a task;
    empty if it was cancelled.
    """

    def __init__(self, name: str, child_id: UUID | None, error: Mapping[str, Any]) -> None:
        problem = f"failed: {describe_stored(error)}" if error else "was cancelled"
        super().__init__(f"Child {name} ({child_id}) {problem}. When it is requeued, this workflow goes on.")
        self.name, self.child_id, self.error = name, child_id, error


class CompensationFailed(JobQueueError):
    """A compensation of a workflow has failed in its last attempt. Requeue the workflow to run it again."""


class NonDeterminism(JobQueueError):
    """The journal of a workflow does not fit its code."""


class JournalTooLong(JobQueueError):
    """The journal of a workflow has too many entries."""


class WorkflowCancelled(BaseException):
    """
    A cancel of the workflow was requested, and its compensations run.

    Not an `Exception`, so that `except Exception` of a workflow does not catch it.
    """

    def __str__(self) -> str:
        return super().__str__() or "The workflow was cancelled."


def describe_stored(error: Mapping[str, Any]) -> str:
    """Return class and message of an error as rows store it."""
    name = str(error.get("exception_class_path", "")).rpartition(".")[2]
    return ": ".join(filter(None, (name, str(error.get("message", "")))))

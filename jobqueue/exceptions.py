"""Errors of the queue. The docstring of each class is its default message."""

import math
from datetime import timedelta


class JobQueueError(Exception):
    """Something went wrong in the job queue."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class InvalidArguments(JobQueueError, ValueError):
    """The arguments of a task are not what its function takes, or are not JSON."""


class PayloadTooLarge(InvalidArguments):
    """The arguments of a task take more than MAX_PAYLOAD_BYTES."""


class TaskNotFound(JobQueueError, LookupError):
    """There is no such task."""


class TaskFinished(JobQueueError):
    """The task has ended and takes no messages."""


class Retry(JobQueueError):
    """
    The task asks to be tried again.

    Raised by a body. Uses up an attempt, as any error does; `after` (seconds or a timedelta)
    replaces the task's backoff. A moment that has passed is now.
    """

    def __init__(self, message: str | None = None, *, after: float | timedelta | None = None) -> None:
        super().__init__(message or "The task asked to be tried again.")
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and seconds < math.inf):
            raise ValueError(f"Retry(after=...) must be a number of seconds or a timedelta, not {after!r}")
        self.after = None if seconds is None else max(0.0, seconds)


class GiveUp(JobQueueError):
    """The task gave up: it ends FAILED, whatever attempts are left."""


class Stale(JobQueueError):
    """What the poll saw is no longer true; poll again."""


class DuplicateKey(JobQueueError):
    """A live task that cannot be seen from here holds the key."""


class MessageAlreadyConsumed(JobQueueError):
    """A message of the inbox was consumed by somebody else; nothing was committed."""


class InvalidActions(JobQueueError, TypeError):
    """A poll returned something else than actions."""


class UndecodableMessage(JobQueueError, ValueError):
    """A message of the inbox is not what the actor's `Message` allows."""


class UnknownTask(JobQueueError):
    """No task of this name is known to the executor, which handed it back for later."""


class Expired(JobQueueError):
    """The task was not started before it expired."""


class ExecutorLost(JobQueueError):
    """Every executor that ran the task was lost while it held it."""


class UndecodableTask(JobQueueError):
    """The stored arguments of the task cannot be read."""


class InvalidResult(JobQueueError):
    """The return value of the task cannot be stored."""


class Interrupted(BaseException):
    """
    The body was told to stop from outside.

    Not an `Exception`, so that a body's `except Exception` does not swallow it.
    """

    def __str__(self) -> str:
        return super().__str__() or (type(self).__doc__ or "").strip()


class TaskTimeout(Interrupted):
    """The task ran longer than its timeout."""


class TaskCancelled(Interrupted):
    """The task was cancelled while it ran."""


class ShuttingDown(Interrupted):
    """The executor stops and hands the task back."""


class ClaimLost(Interrupted):
    """The executor lost its claim on the task, which may run elsewhere."""

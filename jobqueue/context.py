"""What a task that takes a context receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobqueue.compat import TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):  # type: ignore[misc,type-arg]
    """
    Django's TaskContext, and what a body needs to be a good citizen of this queue.

    idempotency_key: the same for every try of one poll; hand it to systems that know such keys.
    """

    idempotency_key: str
    should_stop: Callable[[], bool]

    @property
    def cancelled(self) -> bool:
        """Whether the body was told to stop: cancelled, timed out, shutting down, or its claim is lost."""
        return self.should_stop()

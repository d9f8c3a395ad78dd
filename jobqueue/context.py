"""The context of a task that takes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobqueue.compat import TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):  # type: ignore[misc,type-arg]
    """
    Django's TaskContext with an idempotency key and a cancel flag.

    idempotency_key: the same for each attempt. Pass it to systems that accept such keys.
    """

    idempotency_key: str
    should_stop: Callable[[], bool]

    @property
    def cancelled(self) -> bool:
        """Whether the body should stop: cancelled, timed out, shutting down, or its claim is lost."""
        return self.should_stop()

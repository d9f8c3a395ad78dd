"""The state of a batch, and the messages to it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from jobqueue.values.states import Status

BATCH = "jobqueue.batch"  # the name of batches


class BatchMessage(Struct, frozen=True, omit_defaults=True):
    """A message to a batch. The ends of its members come as those of every child."""

    added: int = 0  # new members
    opened: int = 0  # with-blocks without a transaction; -1: one has ended
    cancels: bool = False  # it is to cancel its members and end
    requeues: bool = False  # it is to requeue the members that were not successful

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


class BatchState(Struct, kw_only=True):
    """The state of a batch. Read by its polls."""

    total: int = 0  # members; those of an open block follow at its end
    successful: int = 0  # members whose last end was SUCCESSFUL
    failed: int = 0  # whose last end was FAILED
    cancelled: int = 0  # whose last end was CANCELLED
    open_blocks: int = 0  # without a transaction, which may add members
    is_cancelled: bool = False  # it cancels its members
    cancelled_up_to: UUID | None = None  # the id of the last one; None: of none, or of all that have later ids
    requeued_up_to: int | None = None  # the entry of the last member that it has requeued; None: it requeues none
    requeues_up_to: int = 0  # the entry of the last member to requeue; later ones have failed again
    is_over: bool = False  # all members have ended, and some were not successful
    called: list[str] = []  # the callbacks that were enqueued

    @property
    def running(self) -> int:
        """Members that have not ended, or that were requeued."""
        return max(0, self.total - self.successful - self.failed - self.cancelled)

    def count(self, status: Status, number: int) -> None:
        """Count members that have ended. A state that is not final changes nothing."""
        match status:
            case Status.SUCCESSFUL:
                self.successful += number
            case Status.FAILED:
                self.failed += number
            case Status.CANCELLED:
                self.cancelled += number

    def numbers(self) -> dict[str, Any]:
        """Return how many members there are, and how many have ended in which way."""
        return {name: getattr(self, name) for name in ("total", "successful", "failed", "cancelled")}

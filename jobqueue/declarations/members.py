"""The with-blocks of batches: which batch the tasks belong to that a caller enqueues."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import UUID

from django.db.transaction import Atomic
from msgspec.structs import replace

from jobqueue.conf.compat import InvalidTask
from jobqueue.values.records import Enqueued, NewTask

# The blocks of this process. While there is none, an enqueue pays for this check only.
open_blocks: set[Block] = set()
_here: ContextVar[Block | None] = ContextVar("jobqueue.members", default=None)


@dataclass(eq=False)
class Block:
    """A with-block of a batch."""

    batch_id: UUID  # the id of the batch's task
    backend: str  # of the batch: only its tasks become members
    thread: int | None  # whose connection has the transaction of the block; None without one
    transaction: Atomic | None  # that the block has opened; None in async code
    is_first: bool = True  # it enqueues the batch
    added: int = 0  # members
    queue_name: str | None = None  # of the first one
    _outer: Block | None = None  # the block around it
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of the counts: an async block has many threads

    def enter(self) -> None:
        """Begin: tasks of the same backend that are enqueued in this context become members."""
        open_blocks.add(self)
        self._outer = _here.get()
        _here.set(self)

    @staticmethod
    def exit() -> Block:
        """End the innermost block, also in copies of its context that go on, such as that of an asyncio task."""
        block = _here.get()
        assert block is not None
        open_blocks.discard(block)
        _here.set(block._outer)
        return block

    def takes(self, backend: str) -> bool:
        """Return whether a task that the caller enqueues becomes a member."""
        return self.backend == backend and self.thread in (None, threading.get_ident())

    def as_members(self, rows: Sequence[NewTask]) -> Sequence[NewTask]:
        return type(rows)(replace(row, parent_id=self.batch_id) for row in rows)  # type: ignore[call-arg]

    def count(self, rows: Sequence[NewTask], answers: Sequence[Enqueued]) -> None:
        """Count the new members. A task that has the key of a row is none."""
        with self._lock:
            self.added += sum(answer.created for answer in answers)
            self.queue_name = self.queue_name or rows[0].queue_name


def block_in(batch_id: UUID) -> Block | None:
    """
    Return the innermost block that the caller is in, if it is one of a batch; otherwise None.

    Raises InvalidTask if that block is one of another batch, and a block of this batch is around it.
    """
    innermost = block = _here.get()
    while block is not None and not (block in open_blocks and block.batch_id == batch_id):
        block = block._outer
    if block is not None and innermost is not block and innermost in open_blocks:
        raise InvalidTask(
            f"This code is in a block of batch {innermost.batch_id}, within a block of batch {batch_id}. Add members "
            "to the outer one after the inner block has ended."
        )
    return block if innermost is block else None


def block_of(backend: str) -> Block | None:
    """Return the innermost block of this backend that the caller is in; None outside of such blocks."""
    block = _here.get()
    while block is not None and not (block in open_blocks and block.takes(backend)):
        block = block._outer
    return block

"""The tasks that this process has claimed, and how to interrupt a running body."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from jobqueue.exceptions import Interrupted, TaskCancelled
from jobqueue.executor.forks import this_process
from jobqueue.records import ClaimedTask, StoredMessage

Stopper = Callable[[type[Interrupted]], None]

INTERRUPT_GAP_SECONDS = 1.0  # a body is interrupted at most once in this time


class RunningTask:
    """
    One claimed task, from the claim to the commit of its outcome.

    Between arm() and disarm() its body runs and may be interrupted; the lock keeps an interruption
    from arriving once the body has ended and its commit begins.
    """

    __slots__ = (
        "_lock",
        "_stopper",
        "claimed",
        "claimed_at",
        "deadline_at",
        "finishes_when_cancelled",
        "first_interrupted_at",
        "interrupted_at",
        "messages",
        "process",
        "reason",
        "started_at",
    )

    def __init__(self, claimed: ClaimedTask, messages: Sequence[StoredMessage] = ()) -> None:
        self.claimed = claimed
        self.messages = messages  # unread when it was claimed
        self.process = this_process()  # the process that has the claim; a forked copy does not have it
        self.finishes_when_cancelled = False  # a poll of an actor is short, and ends before its task does
        self.claimed_at = time.monotonic()
        self.started_at: float | None = None
        self.deadline_at: float | None = None  # monotonic; when its timeout ends
        self.first_interrupted_at: float | None = None  # monotonic; when its body was first interrupted, and last
        self.interrupted_at: float | None = None
        self.reason: type[Interrupted] | None = None
        self._stopper: Stopper | None = None
        self._lock = threading.RLock()

    @property
    def id(self) -> UUID:
        return self.claimed.id

    def now(self) -> datetime:
        """Return the database's time without asking it: the time of the claim, and what has passed since."""
        return self.claimed.claimed_at + timedelta(seconds=time.monotonic() - self.claimed_at)

    @property
    def is_armed(self) -> bool:
        """Whether its body runs now."""
        return self._stopper is not None

    def start(self, timeout_seconds: float | None) -> None:
        self.started_at = time.monotonic()
        if timeout_seconds is not None:
            self.deadline_at = self.started_at + timeout_seconds

    def arm(self, stopper: Stopper) -> None:
        """Let the body be interrupted from here on. Raises the reason of an earlier interruption."""
        with self._lock:
            if self.reason is not None and not self._may_finish(self.reason):
                raise self.reason
            self._stopper = stopper

    def disarm(self, clear: Callable[[], None] = lambda: None) -> None:
        """
        End the time in which the body may be interrupted. `clear` revokes an interruption that has not arrived yet.

        The interruption may arrive in this method, in the body's thread. Call it again then, until it returns.
        """
        # Not `with`: an exception right behind acquire() would leave the lock taken for ever. Here the
        # next call takes it once more, and gives it back as often.
        self._lock.acquire()
        self._stopper = None
        if self.interrupted_at is not None:
            clear()
        while True:
            try:
                self._lock.release()
            except RuntimeError:  # released
                return

    def interrupt(self, reason: type[Interrupted]) -> bool:
        """Interrupt the body. The first reason counts. Return whether a body was running."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
            if self._stopper is None or self._may_finish(reason):
                return False
            now = time.monotonic()
            if self.interrupted_at is None or now - self.interrupted_at >= INTERRUPT_GAP_SECONDS:
                self._stopper(self.reason)
                self.interrupted_at = now
                self.first_interrupted_at = self.first_interrupted_at or now
            return True

    def _may_finish(self, reason: type[Interrupted]) -> bool:
        return reason is TaskCancelled and self.finishes_when_cancelled

    def should_stop(self) -> bool:
        return self.reason is not None


class RunningTasks:
    """The claimed tasks of this process, by id, behind one lock. Any thread may call it."""

    def __init__(self) -> None:
        self._tasks: dict[UUID, RunningTask] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._tasks)

    def __contains__(self, pk: UUID) -> bool:
        with self._lock:
            return pk in self._tasks

    def get(self, pk: UUID) -> RunningTask | None:
        with self._lock:
            return self._tasks.get(pk)

    def snapshot(self) -> dict[UUID, RunningTask]:
        """Return a copy, to be read without the lock."""
        with self._lock:
            return dict(self._tasks)

    def add(self, tasks: Iterable[RunningTask]) -> list[RunningTask]:
        """
        Add claimed tasks. Return the earlier claims that are no longer valid.

        If the number of an earlier claim is not lower than the new one, a backup was restored between the two.
        """
        with self._lock:
            before = [(self._tasks.get(task.id), task) for task in tasks]
            self._tasks.update((task.id, task) for _, task in before)
        return [earlier for earlier, task in before if earlier is not None and is_of_restored_backup(earlier, task)]

    def remove(self, task: RunningTask) -> None:
        """Remove this claim; another claim of the same task stays."""
        with self._lock:
            if self._tasks.get(task.id) is task:
                del self._tasks[task.id]

    def is_superseded(self, task: RunningTask) -> bool:
        """Whether a newer claim of the same task has the same number or a lower one."""
        newer = self.get(task.id)
        return newer is not None and is_of_restored_backup(task, newer)

    def clear(self) -> None:
        with self._lock:
            self._tasks.clear()


def is_of_restored_backup(earlier: RunningTask, later: RunningTask) -> bool:
    """Whether a backup was restored between two claims of one task, because the later number is not higher."""
    return earlier is not later and earlier.claimed.claim_number >= later.claimed.claim_number

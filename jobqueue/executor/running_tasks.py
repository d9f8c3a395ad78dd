"""The claimed tasks of this process: each from its claim until the database has confirmed what became of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from jobqueue.engine.engine import Engine
from jobqueue.exceptions import ClaimLost
from jobqueue.executor.running.attempt import CompletedAttempt, RunningTask
from jobqueue.executor.running.task_runner import count_undelivered, is_atomic, reject_by_database
from jobqueue.records import FINAL, CommitResult, Outcome, Start, Status

Confirmed = tuple[CompletedAttempt, Status | None]  # the state that the task entered; None where its claim was lost


class _Row(NamedTuple):
    claim_number: int
    status: str
    executor_losses: int
    polls: int


class RunningTasks:
    """
    The claimed tasks of this process, by id and behind one lock, and the outcomes of those that have ended.

    Any thread may ask for a task or take a snapshot. Only the loop's thread calls the other methods.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: dict[UUID, RunningTask] = {}
        self._lock = threading.Lock()  # of _tasks
        self._completed: dict[UUID, CompletedAttempt] = {}
        self._uncounted: dict[UUID, RunningTask] = {}  # with a rate that has not counted their start yet
        self._in_doubt: set[UUID] = set()

    def __len__(self) -> int:
        with self._lock:
            return len(self._tasks)

    def __contains__(self, pk: UUID) -> bool:
        with self._lock:
            return pk in self._tasks

    def snapshot(self) -> dict[UUID, RunningTask]:
        """Return a copy, to be read without the lock."""
        with self._lock:
            return self._tasks.copy()

    def uncompleted(self) -> list[RunningTask]:
        """Return the tasks that wait for a slot or run."""
        return [task for pk, task in self.snapshot().items() if pk not in self._completed]

    @property
    def has_completed(self) -> bool:
        """Whether an outcome waits for its commit."""
        return bool(self._completed)

    def pending(self) -> list[Outcome]:
        """Return the outcomes to commit."""
        return [completed.outcome for completed in self._completed.values()]

    @property
    def may_unblock(self) -> bool:
        """Whether other tasks may wait for one of the outcomes to commit."""
        return any(completed.outcome.may_unblock for completed in self._completed.values())

    def add(self, tasks: Sequence[RunningTask]) -> None:
        """Add claimed tasks. Interrupt the bodies of earlier claims of the same tasks, which are lost."""
        with self._lock:
            earlier = [self._tasks[task.id] for task in tasks if task.id in self._tasks]
            self._tasks.update((task.id, task) for task in tasks)
        self._uncounted.update((task.id, task) for task in tasks if task.claimed.rate_key and not is_atomic(task))
        for task in earlier:
            task.interrupt(ClaimLost)

    def complete(self, completed: CompletedAttempt) -> CompletedAttempt | None:
        """
        Keep a completed attempt until its commit is confirmed. Return an attempt that lost its claim, if there is one.

        In an outage, or after the restore of a backup, a claim may be lost while its body runs, and this process may
        claim the task again. Claim numbers can repeat after a restore. So the earlier outcome must not be committed.
        """
        pk = completed.running.id
        if self._tasks.get(pk) is not completed.running:
            return completed
        earlier = self._completed.get(pk)
        self._completed[pk] = completed
        return earlier

    def mark_in_doubt(self) -> None:
        """The connection failed: any outcome may have been committed without an answer."""
        self._in_doubt |= self._completed.keys()

    def confirm(self, result: CommitResult) -> list[Confirmed]:
        """
        Return what is decided now. What is undecided will be committed again, what was refused as a failure.

        Raises django.db.Error, and forgets nothing then.
        """
        rows = self._rows(pk for pk in result.lost if self._is_doubtful(pk))
        counts = count_undelivered(self._engine, self._completed, result)
        confirmed: list[Confirmed] = [
            (replace(self._completed[pk], undelivered=counts[pk]) if counts[pk] else self._completed[pk], status)
            for pk, status in result.done.items()
        ]
        confirmed += [self._explain(pk, rows.get(pk)) for pk in result.lost]
        for completed, _ in confirmed:
            self._completed.pop(completed.running.id)
        for pk, error in result.refused.items():
            self._completed[pk] = reject_by_database(self._completed[pk], error)
        self._in_doubt &= self._completed.keys()
        return confirmed

    @property
    def has_uncounted(self) -> bool:
        """Whether a rate has not counted the start of a claimed task yet."""
        return bool(self._uncounted)

    def count_starts(self, *, after_seconds: float = 0.0, of_all: bool = False) -> None:
        """
        Let rates count the starts of bodies that have run for so long, and still run. Raises django.db.Error.

        The start of a body that has ended is counted with its outcome. So is that of an atomic body, unless of_all:
        under REPEATABLE READ, a change of its row would undo its transaction.
        """
        tasks = self.uncompleted() if of_all else [t for t in self._uncounted.values() if t.id not in self._completed]
        starts = [
            Start(task.id, task.claimed.claim_number, seconds)
            for task in tasks
            if (seconds := task.begun_seconds) is not None and seconds >= after_seconds
        ]
        for pk in self._engine.count_starts(starts) if starts else ():
            self._uncounted.pop(pk, None)

    def remove(self, task: RunningTask) -> None:
        """Forget this claim; a later claim of the same task stays."""
        with self._lock:
            if self._tasks.get(task.id) is task:
                del self._tasks[task.id]
                self._uncounted.pop(task.id, None)

    def clear(self) -> None:
        with self._lock:
            self._tasks.clear()

    def _is_doubtful(self, pk: UUID) -> bool:
        return pk in self._in_doubt or self._completed[pk].if_lost is not None

    def _rows(self, ids: Iterable[UUID]) -> dict[UUID, _Row]:
        rows = self._engine.tasks.filter(pk__in=list(ids)).values_list("pk", *_Row._fields)
        return {pk: _Row(*values) for pk, *values in rows}

    def _explain(self, pk: UUID, row: _Row | None) -> Confirmed:
        """Find out whether an outcome that counts as lost was committed before, in a transaction without an answer."""
        completed = self._completed[pk]
        if not self._is_doubtful(pk):
            return completed, None
        claimed, success = completed.running.claimed, completed.if_lost
        if row is None:  # a task that has ended may have been pruned by now
            pruned = success or completed
            return (pruned, pruned.outcome.status) if pruned.outcome.status in FINAL else (completed, None)
        is_ours = row.claim_number == claimed.claim_number
        # A claim ends by a commit of its holder, or by a rescue, which counts a loss.
        is_rescued = row.executor_losses > claimed.executor_losses
        is_taken = is_rescued or (is_ours and row.status == Status.RUNNING)
        # A task that has ended is claimed again only after a requeue, which forgets its losses.
        is_of_another = success is not None and success.outcome.status in FINAL and is_rescued and not is_ours
        if success is not None and row.polls > claimed.polls and not is_of_another:
            completed = success
        elif is_taken or pk not in self._in_doubt:
            return completed, None
        return completed, Status.CANCELLED if is_ours and row.status == Status.CANCELLED else completed.outcome.status

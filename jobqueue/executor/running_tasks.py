"""The claimed tasks of this process: each from its claim until the database has confirmed what became of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError
from django.db.models import TextField
from django.db.models.functions import Cast
from msgspec.structs import replace

from jobqueue.engine import LOST_CLASS_PATH, Engine, read_list
from jobqueue.exceptions import ClaimLost
from jobqueue.executor.commit_batches import LONE_TRIES, CommitBatches
from jobqueue.executor.running.attempt import CompletedAttempt, RunningTask
from jobqueue.executor.running.events import task_fields
from jobqueue.executor.running.task_runner import count_undelivered, is_atomic, reject_by_database
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.records import ClaimedTask, CommitResult, Outcome, Start
from jobqueue.values.states import Status
from jobqueue.values.text import printable

logger = get_logger(__name__)

NAMED = 10  # tasks in one line of the log
Confirmed = tuple[CompletedAttempt, Status | None]  # the state that the task entered; None where its claim was lost


class _Row(NamedTuple):
    """Columns of a running task's row."""

    claim_number: int  # of the last claim
    status: str  # now
    polls: int  # that have succeeded
    errors: str  # JSON array

    def was_rescued(self, claimed: ClaimedTask) -> bool:
        """Return whether a rescue ended this claim. It writes an error with the number of the claim."""
        entries = [entry for entry in read_list(self.errors) if isinstance(entry, dict)]
        return any(
            (entry.get("claim_number"), entry.get("exception_class_path")) == (claimed.claim_number, LOST_CLASS_PATH)
            for entry in entries
        )


class RunningTasks:
    """
    The claimed tasks of this process, by id and behind one lock, and the outcomes of those that have ended.

    Any thread may ask for a task or take a snapshot. Only the loop's thread calls the other methods.

    It has more than 20 methods because its lock guards tasks, outcomes and counted starts together.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: dict[UUID, RunningTask] = {}
        self._lock = threading.Lock()  # of _tasks
        self._completed: dict[UUID, CompletedAttempt] = {}
        self._uncounted: dict[UUID, RunningTask] = {}  # with a rate that has not counted their start yet
        self.batches = CommitBatches()
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
        """Return the outcomes to commit now, of those that were in no commit that failed."""
        return self.batches.fresh(self._completed)

    def locked(self) -> list[Outcome]:
        """Return outcomes to commit again: they waited for other sessions' locks."""
        return [self._completed[pk].outcome for pk in self.batches.locked()]

    def slow(self) -> list[Outcome]:
        """Return outcomes to commit again: their commit took too long."""
        return self.batches.slow(self._completed)

    def commit_failed(self, outcomes: Sequence[Outcome], error: str, seconds: float, *, counts: bool) -> None:
        """
        Keep outcomes of which a commit failed. One that never fits fails its task, in place of all others.

        counts: as in CommitBatches.fail().
        """
        names = [printable(self._completed[outcome.task_id].running.claimed.task_type) for outcome in outcomes]
        logger.warning(
            "commit.deferred tasks=%d after_s=%.1f ids=%s names=%s error=%s",
            len(outcomes),
            seconds,
            list_first([outcome.task_id for outcome in outcomes]),
            list_first(sorted(set(names))),
            error,
        )
        hopeless = self.batches.fail(outcomes, error, seconds, counts=counts)
        if hopeless is None:
            return
        completed = self._completed[hopeless]
        reason = f"its commit alone took {seconds:.0f} s and was cancelled, {LONE_TRIES} times ({error})"
        refusal = DatabaseError(f"{reason}. {describe_size(completed.outcome)}")
        rejected = reject_by_database(completed, refusal)
        if hopeless in self._in_doubt and completed.outcome.has_succeeded:
            rejected = replace(rejected, success_in_doubt=completed)
        self._completed[hopeless] = rejected
        logger.error(
            "task.commit_failed task=%s id=%s error=%s",
            printable(completed.running.claimed.task_type),
            hopeless,
            refusal,
            extra=task_fields(completed.running),
        )

    @property
    def may_unblock_others(self) -> bool:
        """Whether other tasks may wait for one of the outcomes to commit."""
        return any(map(attrgetter("outcome.may_unblock_others"), self._completed.values()))

    def add(self, tasks: Sequence[RunningTask]) -> None:
        """Add claimed tasks. Interrupt the bodies of earlier claims of the same tasks, which are lost."""
        new, earlier = {task.claimed.id: task for task in tasks}, []
        with self._lock:
            before, self._tasks = self._tasks, self._tasks | new
            if len(self._tasks) < len(before) + len(new):
                earlier = [before[pk] for pk in new if pk in before]
        self._uncounted.update((task.id, task) for task in tasks if task.claimed.rate_key and not is_atomic(task))
        for task in earlier:
            task.interrupt(ClaimLost)

    def complete(self, attempts: Iterable[CompletedAttempt]) -> list[CompletedAttempt]:
        """
        Keep completed attempts until their commit is confirmed. Return attempts that lost their claims.

        In an outage, or after the restore of a backup, a claim may be lost while its body runs, and this process may
        claim the task again. Claim numbers can repeat after a restore. So the earlier outcome must not be committed.
        """
        lost = []
        for completed in attempts:
            pk = completed.running.claimed.id
            if self._tasks.get(pk) is not completed.running:
                lost.append(completed)
                continue
            earlier = self._completed.setdefault(pk, completed)
            if earlier is not completed:
                lost.append(earlier)
                self._completed[pk] = completed
        return lost

    def mark_in_doubt(self) -> None:
        """Note that the connection failed: any outcome may have been committed without an answer."""
        self._in_doubt |= self._completed.keys()

    def confirm(self, result: CommitResult) -> list[Confirmed]:
        """
        Return the decided outcomes. Undecided ones are committed again, refused ones as a failure.

        Raises django.db.Error, and forgets nothing then.
        """
        doubtful = [pk for pk in result.lost if self._is_doubtful(pk)]
        rows = self._rows(doubtful) if doubtful else {}
        done = [(self._completed[pk], status) for pk, status in result.done.items()]
        counts = count_undelivered(self._engine, done, result.dropped)
        confirmed: list[Confirmed] = [*(with_undelivered(done, counts) if counts else done)]
        confirmed += [self._explain(pk, rows.get(pk)) for pk in result.lost]
        for completed, _ in confirmed:
            del self._completed[completed.running.claimed.id]
        for pk, error in result.refused.items():
            self._completed[pk] = reject_by_database(self._completed[pk], error)
        if ended := [*result.done, *result.lost, *result.refused]:
            self.batches.succeed(ended)
        if result.waiting:
            self._wait(result.waiting)
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
        for pk in self._engine.admissions.count_starts(starts) if starts else ():
            self._uncounted.pop(pk, None)

    def _wait(self, waiting: Mapping[UUID, Exception]) -> None:
        new = self.batches.wait({pk: format_first_line(error) for pk, error in waiting.items()})
        if new:
            logger.info(
                "commit.blocked tasks=%d ids=%s error=%s", len(new), list_first(new), format_first_line(waiting[new[0]])
            )

    def remove(self, tasks: Iterable[RunningTask]) -> None:
        """Forget these claims; later claims of the same tasks stay."""
        with self._lock:
            for task in tasks:
                pk = task.claimed.id
                if (last := self._tasks.pop(pk, None)) is not task:
                    if last is not None:
                        self._tasks[pk] = last
                elif self._uncounted:
                    self._uncounted.pop(pk, None)

    def clear(self) -> None:
        with self._lock:
            self._tasks.clear()

    def _is_doubtful(self, pk: UUID) -> bool:
        return pk in self._in_doubt or self._completed[pk].success_in_doubt is not None

    def _rows(self, ids: Sequence[UUID]) -> dict[UUID, _Row]:
        rows = self._engine.db.tasks.filter(pk__in=ids).annotate(errors_text=Cast("errors", TextField()))
        columns = ("pk", "claim_number", "status", "polls", "errors_text")
        return {pk: _Row(*values) for pk, *values in rows.values_list(*columns)}

    def _explain(self, pk: UUID, row: _Row | None) -> Confirmed:
        """Find out whether an outcome that counts as lost was committed before, in a transaction without an answer."""
        completed = self._completed[pk]
        if not self._is_doubtful(pk):
            return completed, None
        claimed, success = completed.running.claimed, completed.success_in_doubt
        if row is None:
            ended = success or completed
            return (ended, ended.outcome.status) if self._may_be_pruned(ended) else (completed, None)
        if row.claim_number < claimed.claim_number:  # of a restored backup from before this claim
            return completed, None
        is_ours = row.claim_number == claimed.claim_number
        # A claim ends by a commit of its holder, or by a rescue.
        if row.was_rescued(claimed) or (is_ours and row.status == Status.RUNNING):
            return completed, None
        if success is not None and row.polls > claimed.polls:
            completed = success
        elif pk not in self._in_doubt:
            return completed, None
        return completed, Status.CANCELLED if is_ours and row.status == Status.CANCELLED else completed.outcome.status

    def _may_be_pruned(self, ended: CompletedAttempt) -> bool:
        """
        Return whether RETENTION explains that the row is gone. Otherwise a restored backup or a person removed it.
        """
        kept_seconds = self._engine.options.retention.get(ended.outcome.status)
        return kept_seconds is not None and time.monotonic() - ended.running.claimed_at >= kept_seconds


def with_undelivered(
    done: Iterable[tuple[CompletedAttempt, Status]], counts: Mapping[UUID, int]
) -> Iterator[Confirmed]:
    """Add the numbers of undelivered messages to attempts."""
    for completed, status in done:
        count = counts.get(completed.running.id, 0)
        yield (replace(completed, undelivered=count) if count else completed), status


def list_first(values: Sequence[Any]) -> str:
    """Return the first values as one text for the log."""
    more = f",+{len(values) - NAMED}" if len(values) > NAMED else ""
    return ",".join(map(str, values[:NAMED])) + more


def describe_size(outcome: Outcome) -> str:
    """Describe the size of an outcome and how to make it smaller, for its error."""
    effects = outcome.effects
    return (
        f"It consumes {len(effects.consumed)} messages, spawns {len(effects.spawn)} tasks and sends "
        f"{len(effects.send)} messages{', and cancels its children' if effects.cancel_children else ''}. "
        "Let one poll do less, or find what slows the database down for these rows, such as a trigger."
    )

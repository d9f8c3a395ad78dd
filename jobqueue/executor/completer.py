"""Completed attempts, each until the database has confirmed what became of its task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from jobqueue.engine.engine import Engine
from jobqueue.executor.running.task_runner import CompletedAttempt, ExecutorIdentity, reject_by_database
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.records import FINAL, NO_EFFECTS, CommitResult, Outcome, Status

logger = get_logger(__name__)

Confirmed = tuple[CompletedAttempt, Status | None]  # the state that the task entered; None where its claim was lost


@dataclass(slots=True)
class Counters:
    """
    What this process did, for its last log line and for tests.

    claimed: without tasks that were released before they started. polled: polls of actors that did not end.
    undelivered: messages that no task will read. turns: of the loop.
    """

    claimed: int = 0
    finished: int = 0
    polled: int = 0
    retried: int = 0
    released: int = 0
    lost: int = 0
    undelivered: int = 0
    turns: int = 0

    def add(self, attempt: CompletedAttempt, status: Status | None) -> None:
        """Count one confirmed attempt. status: the state that its task entered, None where the claim was lost."""
        self.undelivered += attempt.undelivered
        if status is None:
            self.lost += 1
        elif status in FINAL:
            self.finished += 1
        elif attempt.hold.started_at is None:
            self.claimed -= 1
        elif attempt.outcome.has_succeeded:
            self.polled += 1
        elif status is Status.READY:
            self.released += 1
        else:
            self.retried += 1


class _Row(NamedTuple):
    claim_number: int
    status: str
    executor_losses: int
    polls: int


class Completer:
    """Keeps completed attempts until the database has confirmed them. Belongs to the loop's thread."""

    def __init__(self, engine: Engine, worker: ExecutorIdentity) -> None:
        self._engine, self._worker = engine, worker
        self._completed: dict[UUID, CompletedAttempt] = {}
        self._in_doubt: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._completed)

    def __contains__(self, pk: UUID) -> bool:
        return pk in self._completed

    def pending(self) -> list[Outcome]:
        """Return the outcomes to commit."""
        return [attempt.outcome for attempt in self._completed.values()]

    def add(self, attempt: CompletedAttempt) -> CompletedAttempt | None:
        """
        Keep a completed attempt. If there are two of one task, return the one with the lost claim.

        A claim that was lost, as in an outage, may have come back to this process while its first body still ran.
        """
        before = self._completed.get(attempt.hold.id)
        if before is None:
            self._completed[attempt.hold.id] = attempt
            return None
        older, newer = sorted((before, attempt), key=lambda ended: ended.hold.claimed.claim_number)
        self._completed[attempt.hold.id] = newer
        return older

    def mark_in_doubt(self) -> None:
        """The connection failed: any outcome may have been committed without an answer."""
        self._in_doubt |= self._completed.keys()

    def confirm(self, result: CommitResult) -> list[Confirmed]:
        """
        Return what is decided now, and forget it. What is undecided will be committed again.

        Raises django.db.Error, and forgets nothing then.
        """
        rows = self._rows(pk for pk in result.lost if self._is_doubtful(pk))
        counts = undelivered(self._engine, self._completed, result)
        confirmed: list[Confirmed] = [
            (replace(self._completed[pk], undelivered=counts[pk]) if counts[pk] else self._completed[pk], status)
            for pk, status in result.done.items()
        ]
        confirmed += [self._explain(pk, rows.get(pk)) for pk in result.lost]
        for attempt, _ in confirmed:
            self._completed.pop(attempt.hold.id)
        for pk, error in result.refused.items():
            self._completed[pk] = reject_by_database(self._completed[pk], error, self._worker)
        self._in_doubt &= self._completed.keys()
        return confirmed

    def _is_doubtful(self, pk: UUID) -> bool:
        return pk in self._in_doubt or self._completed[pk].if_lost is not None

    def _rows(self, ids: Iterable[UUID]) -> dict[UUID, _Row]:
        rows = self._engine.tasks.filter(pk__in=list(ids)).values_list("pk", *_Row._fields)
        return {pk: _Row(*values) for pk, *values in rows}

    def _explain(self, pk: UUID, row: _Row | None) -> Confirmed:
        """Find out whether an outcome that counts as lost was committed before, in a transaction without an answer."""
        attempt = self._completed[pk]
        if not self._is_doubtful(pk):
            return attempt, None
        claimed, success = attempt.hold.claimed, attempt.if_lost
        if row is None:  # a task that has ended may have been pruned by now
            pruned = success or attempt
            return (pruned, pruned.outcome.status) if pruned.outcome.status in FINAL else (attempt, None)
        is_ours = row.claim_number == claimed.claim_number
        # A claim ends by a commit of its holder, or by a rescue, which counts a loss.
        is_rescued = row.executor_losses > claimed.executor_losses
        is_taken = is_rescued or (is_ours and row.status == Status.RUNNING)
        # A task that has ended is claimed again only after a requeue, which forgets its losses.
        is_of_another = success is not None and success.outcome.status in FINAL and is_rescued and not is_ours
        if success is not None and row.polls > claimed.polls and not is_of_another:
            attempt = success
        elif is_taken or pk not in self._in_doubt:
            return attempt, None
        return attempt, Status.CANCELLED if is_ours and row.status == Status.CANCELLED else attempt.outcome.status


def undelivered(engine: Engine, ended: Mapping[UUID, CompletedAttempt], committed: CommitResult) -> Counter[UUID]:
    """
    Count the messages that no task will read: left by an actor that has ended, or sent to a parent that had ended.

    Counts after the commit. It misses a message whose transaction commits later; the admin shows that message, too.
    """
    actors = [pk for pk, status in committed.done.items() if status in FINAL and is_actor(ended[pk])]
    unread = engine.count_unread(actors) if actors else {}
    for pk, count in unread.items():
        logger.info("message.undelivered id=%s count=%d", pk, count)
    return Counter(committed.dropped) + Counter(unread)


def is_actor(attempt: CompletedAttempt) -> bool:
    return attempt.loaded is not None and attempt.loaded.context is not None


def is_work_for_others(outcome: Outcome, status: Status | None) -> bool:
    """Whether a commit made tasks READY, its own or others."""
    if status is None:
        return False
    has_notified_parent = outcome.parent_id is not None and status in FINAL
    return (
        has_notified_parent or outcome.effects is not NO_EFFECTS or (outcome.has_succeeded and status is Status.READY)
    )

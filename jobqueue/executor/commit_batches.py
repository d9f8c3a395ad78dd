"""Choose the outcomes of the next commit: fewer after one that failed, more after each that succeeded."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from jobqueue.executor.running.attempt import CompletedAttempt
from jobqueue.values.records import NO_EFFECTS, Outcome

LONE_TRIES = 2  # commits of a single outcome that took too long, after which the outcome itself is given up
LOCKED_AT_ONCE = 20  # outcomes that wait for other sessions' locks, in one commit
FIRST_WAIT_SECONDS = 0.05  # until an outcome that waits for a lock is committed again; doubled each time
LONGEST_WAIT_SECONDS = 2.0
LONGEST_REST_SECONDS = 60.0
CHARACTERS = 10_000  # of a result, a state or a message: as heavy as one row
UNKNOWN_WEIGHT = 10_000  # of a whole family of children
UNLIMITED = float("inf")


@dataclass(slots=True)
class FailedCommit:
    """An outcome of which a commit has failed."""

    since: float  # of the first failure, monotonic
    error: str  # of the last one
    is_locked: bool = False  # it waits for a lock of another session
    tries: int = 0  # in a row
    alone: int = 0  # commits that contained nothing else
    next_at: float = 0.0  # when it is tried again, monotonic


class CommitBatches:
    """
    Divides the outcomes into fresh ones and those of which a commit has failed.

    A failed commit halves the weight of the next one, so that the outcome that is too heavy is soon alone, and all
    others are committed without it. Fresh outcomes are committed before them. Belongs to the loop's thread.
    """

    def __init__(self) -> None:
        self._failed: dict[UUID, FailedCommit] = {}
        self._limit = UNLIMITED  # weight of a commit
        self._slow_at = 0.0  # when the next commit of outcomes that were too slow may begin, monotonic

    def fresh(self, completed: Mapping[UUID, CompletedAttempt]) -> list[Outcome]:
        """Return the outcomes for the next commit, of those that never failed."""
        if not self._failed and self._limit == UNLIMITED:
            return [attempt.outcome for attempt in completed.values()]
        return self._first(attempt.outcome for pk, attempt in completed.items() if pk not in self._failed)

    def locked(self) -> list[UUID]:
        """Return outcomes that got no lock, and may try again."""
        now = time.monotonic()
        due = (pk for pk, failed in self._failed.items() if failed.is_locked and failed.next_at <= now)
        return [pk for pk, _ in zip(due, range(LOCKED_AT_ONCE), strict=False)]

    def slow(self, completed: Mapping[UUID, CompletedAttempt]) -> list[Outcome]:
        """Return slow outcomes for the next commit, the lightest first."""
        if not self._failed or time.monotonic() < self._slow_at:
            return []
        slow = [completed[pk].outcome for pk, failed in self._failed.items() if not failed.is_locked]
        return self._first(sorted(slow, key=weight))

    def _first(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return as many outcomes as are light enough together, and at least one."""
        batch: list[Outcome] = []
        total = 0
        for outcome in outcomes:
            total += weight(outcome)
            if batch and total > self._limit:
                break
            batch.append(outcome)
        return batch

    # --- what came of it

    def has_failed(self, pk: UUID) -> bool:
        return pk in self._failed

    def fail(self, outcomes: Sequence[Outcome], error: str, seconds: float, *, counts: bool) -> UUID | None:
        """
        Record that a commit failed. Return the outcome that can never be committed, if that is certain now.

        counts: the commit took too long, and the database took other writes at the same time.
        """
        now = time.monotonic()
        self._limit = max(1.0, sum(map(weight, outcomes)) / 2)
        self._slow_at = now + min(seconds, LONGEST_REST_SECONDS)  # others have half of the time at least
        for outcome in outcomes:
            failed = self._failed.setdefault(outcome.task_id, FailedCommit(now, error))
            failed.error, failed.is_locked = error, False
        if len(outcomes) == 1 and counts:
            failed.alone += 1
            if failed.alone >= LONE_TRIES:
                failed.alone = 0  # the outcome that replaces it gets as many
                return outcomes[0].task_id
        return None

    def is_alone(self, outcomes: Sequence[Outcome]) -> bool:
        """Return whether a commit contains a single outcome that was too slow before."""
        return len(outcomes) == 1 and outcomes[0].task_id in self._failed

    def wait(self, waiting: Mapping[UUID, str]) -> list[UUID]:
        """Record outcomes that wait for locks of other sessions. Return those of which that is new."""
        now, new = time.monotonic(), []
        for pk, error in waiting.items():
            failed = self._failed.setdefault(pk, FailedCommit(now, error))
            if not failed.is_locked:
                new.append(pk)
                failed.since, failed.tries = now, 0
            failed.error, failed.is_locked = error, True
            failed.next_at = now + min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failed.tries, 20))
            failed.tries += 1
        return new

    def succeed(self, ended: Collection[UUID]) -> None:
        """Record outcomes that need no further commit."""
        if not self._failed and self._limit == UNLIMITED:
            return
        recovered = [pk for pk in ended if self._failed.pop(pk, None) is not None]
        if self._limit != UNLIMITED and (recovered or not self._failed):
            self._limit = UNLIMITED if self._limit > UNKNOWN_WEIGHT**2 else self._limit * 2

    def stuck(self) -> tuple[int, float, str] | None:
        """Return how many outcomes were too slow, for how many seconds, and the last error."""
        slow = [failed for failed in self._failed.copy().values() if not failed.is_locked]
        if not slow:
            return None
        return len(slow), time.monotonic() - min(failed.since for failed in slow), slow[-1].error

    def waiting(self) -> tuple[int, float] | None:
        """Return how many outcomes wait for locks of other sessions, and for how many seconds."""
        locked = [failed.since for failed in self._failed.copy().values() if failed.is_locked]
        return (len(locked), time.monotonic() - min(locked)) if locked else None


def weight(outcome: Outcome) -> int:
    """Estimate how many rows a commit writes for an outcome. Long texts count as several."""
    texts = (outcome.return_value, outcome.inner_state, outcome.metadata, outcome.error)
    characters = sum(len(text) for text in texts if text is not None)
    effects = outcome.effects
    if effects is NO_EFFECTS:
        return 1 + characters // CHARACTERS
    characters += sum(len(message.body) for message in effects.send)
    characters += sum(len(child.args) + len(child.kwargs) for child in effects.spawn)
    rows = 1 + len(effects.consumed) + len(effects.spawn) + len(effects.send)
    return rows + characters // CHARACTERS + UNKNOWN_WEIGHT * effects.cancel_children

"""Commit on PostgreSQL: one statement for plain outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import starmap
from operator import attrgetter
from uuid import UUID

import msgspec

from jobqueue.engine.commit import Commits, locked_rows, merge
from jobqueue.engine.postgres.connection import (
    STATUSES,
    PostgresDatabase,
    as_array,
    as_json,
    as_json_array,
    as_values,
)
from jobqueue.engine.tasks import LockedRow
from jobqueue.values.counters import EDGES
from jobqueue.values.records import NO_EFFECTS, CommitResult, Outcome
from jobqueue.values.states import FINAL, Status

BUCKETS = as_array(EDGES)
NULL = "null"  # the result of a function that returns None
# Of one commit_successes.sql, whose one jsonb object holds 256 MiB: six bytes for a character of short numbers.
MAX_RESULTS_CHARS = 32_000_000
IS_PLAIN, IS_PLAIN_SUCCESS = attrgetter("is_plain"), attrgetter("is_plain_success")
MAY_UNBLOCK_OTHERS = attrgetter("may_unblock_others")


class PostgresCommits(Commits):
    db: PostgresDatabase

    def _commit_together(
        self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool, lock_wait: str | None
    ) -> CommitResult:
        is_one_statement = not wait and all(map(IS_PLAIN, outcomes)) and not any(map(MAY_UNBLOCK_OTHERS, outcomes))
        if is_one_statement and lock_wait is None and self.db.is_autocommit_safe():
            return self.perform(outcomes, holder=holder)
        return super()._commit_together(outcomes, holder=holder, wait=wait, lock_wait=lock_wait)

    def perform(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
        if not wait and are_plain_successes(outcomes):
            done, lost = self._write_successes(outcomes, holder)
        elif not wait and all(map(IS_PLAIN, outcomes)):
            done, lost, asked = self._write_rows(outcomes, holder)
            if asked:
                with self.db.transaction():  # a journal may defer the cancel
                    own = super().perform([o for o in outcomes if o.task_id in asked], holder=holder)
                rest = [outcome for outcome in outcomes if outcome.task_id not in asked]
                return merge([own, self._answer(rest, done, lost)])
        else:
            return super().perform(outcomes, holder=holder, wait=wait)
        return self._answer(outcomes, done, lost)

    def _answer(self, outcomes: Sequence[Outcome], done: dict[UUID, Status], lost: set[UUID]) -> CommitResult:
        """Request admissions for what plain outcomes have freed, and return their results."""
        if any(map(MAY_UNBLOCK_OTHERS, outcomes)):
            limited = [outcome for outcome in outcomes if outcome.may_unblock_others]
            self.admissions.settle({o.task_id: o.begun_seconds for o in limited if o.task_id in done})
        if len(done) == len(outcomes):  # as a rule
            return CommitResult(done=done)
        missing = {outcome.task_id for outcome in outcomes} - done.keys() - lost
        gone = self.db.missing(missing)
        return CommitResult(done=done, lost=frozenset(lost | gone), unknown=frozenset(missing - gone))

    def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
        if wait:
            return super()._lock_for_commit(ids, wait=True)
        return locked_rows(self.db.query_prepared("lock_tasks", ids=as_array(ids)))

    def _delete_read(self, readers: Mapping[int, UUID]) -> int:
        ((count,),) = self.db.query_prepared(
            "consume_messages",
            ids=as_array(readers),
            task_ids=as_array(readers.values()),
            keep=self.db.options.keep_messages,
        )
        return int(count)

    def _write(self, changes: Sequence[tuple[Outcome, Status]]) -> None:
        if changes:
            self._write_rows(list(starmap(as_written, changes)))

    def _write_rows(
        self, outcomes: Sequence[Outcome], holder: UUID | None = None
    ) -> tuple[dict[UUID, Status], set[UUID], set[UUID]]:
        """
        Return the status that each row entered, and the rows that were not written: those of another claim, and those
        whose cancel was requested. Skip locked rows.
        """
        rows = self.db.query_prepared("commit", holder=holder, edges=BUCKETS, outcomes=as_json(outcomes))
        done = {pk: STATUSES[status] for pk, status in rows if status in STATUSES}
        left = {pk: status for pk, status in rows if status not in STATUSES}
        return done, {pk for pk, status in left.items() if status is None}, {pk for pk in left if left[pk] is not None}

    def _write_successes(
        self, outcomes: Sequence[Outcome], holder: UUID | None
    ) -> tuple[dict[UUID, Status], set[UUID]]:
        ids = [outcome.task_id for outcome in outcomes]
        results = [outcome.return_value for outcome in outcomes]
        rows = self.db.query_prepared(
            "commit_successes",
            ids=as_values(ids),
            claim_numbers=as_values([outcome.claim_number for outcome in outcomes]),
            run_seconds=as_values([outcome.run_seconds or 0.0 for outcome in outcomes]),
            return_values=None if results.count(NULL) == len(results) else as_json_array(results),
            worker_id=outcomes[0].worker_id,
            holder=holder,
            edges=BUCKETS,
        )
        done = dict.fromkeys(ids, Status.SUCCESSFUL)
        for pk, _ in rows:
            del done[pk]
        return done, {pk for pk, is_of_another in rows if is_of_another}


def are_plain_successes(outcomes: Sequence[Outcome]) -> bool:
    """Return whether commit_successes.sql can commit outcomes, which are those of one executor."""
    return (
        all(map(IS_PLAIN_SUCCESS, outcomes))
        and len({outcome.worker_id for outcome in outcomes}) == 1
        and sum(len(outcome.return_value) for outcome in outcomes if outcome.return_value) <= MAX_RESULTS_CHARS
    )


def as_written(outcome: Outcome, entering: Status) -> Outcome:
    """Return the part of an outcome that changes its own row."""
    if outcome.status is entering and entering in FINAL and outcome.effects is NO_EFFECTS:
        return outcome
    return msgspec.structs.replace(outcome, decided=entering, effects=NO_EFFECTS)

"""Commit as statements of PostgreSQL: one for a batch of plain outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec

from jobqueue.engine.portable.cancel import LockedRow
from jobqueue.engine.portable.commit import Committer, locked_rows
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_json
from jobqueue.metrics import EDGES
from jobqueue.records import NO_EFFECTS, CommitResult, Outcome, Status

BUCKETS = f"{{{','.join(map(str, EDGES))}}}"  # as an array


class PostgresCommitter(Committer):
    db: PostgresDatabase

    def _commit_together(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool) -> CommitResult:
        is_one_statement = not wait and all(outcome.is_plain for outcome in outcomes)
        if is_one_statement and self.db.is_autocommit_safe():
            return self.apply(outcomes, holder=holder)
        return super()._commit_together(outcomes, holder=holder, wait=wait)

    def apply(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
        if wait or not all(outcome.is_plain for outcome in outcomes):
            return super().apply(outcomes, holder=holder, wait=wait)
        seen = self._write_rows([(outcome, outcome.status) for outcome in outcomes], holder)
        missing = {outcome.task_id for outcome in outcomes} - seen.keys()
        gone = self.db.missing(missing)
        return CommitResult(
            done={pk: status for pk, status in seen.items() if status is not None},
            lost=frozenset({pk for pk, status in seen.items() if status is None} | gone),
            unknown=frozenset(missing - gone),
        )

    def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
        if wait:
            return super()._lock_for_commit(ids, wait=True)
        return locked_rows(self.db.query_prepared("lock_tasks", backend=self.db.backend, ids=as_array(ids)))

    def _delete_read(self, readers: Mapping[int, UUID]) -> int:
        ((count,),) = self.db.query_prepared(
            "consume_messages", ids=as_array(readers), task_ids=as_array(readers.values())
        )
        return int(count)

    def _write(self, changes: Sequence[tuple[Outcome, Status]]) -> None:
        if changes:
            self._write_rows(changes)

    def _write_rows(
        self, changes: Sequence[tuple[Outcome, Status]], holder: UUID | None = None
    ) -> dict[UUID, Status | None]:
        """Return the status that each row entered; None: another claim holds it. Skip locked rows."""
        rows = self.db.query_prepared(
            "commit",
            holder=holder,
            aging=float(self.db.options.aging),
            edges=BUCKETS,
            outcomes=as_json([as_written(outcome, entering) for outcome, entering in changes]),
        )
        return {pk: None if status is None else Status(status) for pk, status in rows}


def as_written(outcome: Outcome, entering: Status) -> Outcome:
    """Return the part of an outcome that changes its own row."""
    if outcome.status is entering and outcome.effects is NO_EFFECTS:
        return outcome
    return msgspec.structs.replace(outcome, decided=entering, effects=NO_EFFECTS)

"""Enqueue on PostgreSQL: the function jobqueue_enqueue inserts up to a thousand rows in one call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from operator import is_
from uuid import UUID

from jobqueue.engine.portable.enqueue import ENQUEUE_BATCH, KEY_TRIES, Enqueuer, key_taken
from jobqueue.engine.postgres.connection import PostgresDatabase, as_json
from jobqueue.records import Enqueued, NewTask, Status

STATUSES = {status.value: status for status in Status}  # calling Status takes a microsecond


class PostgresEnqueuer(Enqueuer):
    db: PostgresDatabase

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        if len(rows) > ENQUEUE_BATCH:
            return super().enqueue(rows)
        with self.db.read_committed() if any(row.key is not None for row in rows) else nullcontext():
            return self.insert(rows)

    def insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        in_order = sorted(rows, key=lambda row: row.key or "")
        answers: list[Enqueued] = []
        for start in range(0, len(rows), ENQUEUE_BATCH):
            answers += self._insert_batch(in_order[start : start + ENQUEUE_BATCH])
        if all(map(is_, in_order, rows)):
            return answers
        by_id = {row.id: answer for row, answer in zip(in_order, answers, strict=True)}
        return [by_id[row.id] for row in rows]

    def _insert_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        missing, answers = rows, dict[UUID, Enqueued]()
        for _ in range(KEY_TRIES):  # once, unless a key's holder is deleted between two statements
            inserted = self._insert_rows(missing)
            if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule
                return inserted
            answers |= {answer.id: answer for answer in inserted}
            for holders_of in (self._holders_of, self._last_holders_of):
                if missing := [row for row in rows if row.id not in answers]:
                    holders = holders_of({row.key for row in missing})
                    answers |= {row.id: holders[row.key] for row in missing if row.key in holders}
            if len(answers) == len(rows):
                return [answers[row.id] for row in rows]
        raise key_taken(missing[0].key)

    def _insert_rows(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """Insert the rows with a free key, and return an answer for each."""
        inserted = self.db.query_prepared(
            "enqueue", backend=self.db.backend, aging=float(self.db.options.aging), rows=as_json(rows)
        )
        return [Enqueued(pk, at, STATUSES[status], True) for pk, at, status in inserted]

    def _last_holders_of(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the last holder of each key, live or ended. See key_holders.sql."""
        rows = self.db.query_prepared("key_holders", backend=self.db.backend, keys=list(keys))
        return {key: Enqueued(pk, at, STATUSES[status], False) for key, pk, at, status in rows}

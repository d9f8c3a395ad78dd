"""Insert the rows of new tasks on PostgreSQL, up to 1,000 in one statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import is_
from uuid import UUID

from jobqueue.engine.inserts import INSERT_BATCH, KEY_TRIES, Inserts, key_taken
from jobqueue.engine.postgres.connection import STATUSES, PostgresDatabase, as_json
from jobqueue.values.records import Enqueued, NewTask

# The function of jobqueue/migrations/sql/enqueue.sql. rows: a JSON list of NewTask in the order of their keys.
ENQUEUE = """
SELECT id, enqueued_at, status FROM jobqueue_enqueue(%(backend)s::text, %(aging)s::float8, %(rows)s::json)
"""


class PostgresInserts(Inserts):
    db: PostgresDatabase

    def _insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        in_order = sorted(rows, key=lambda row: row.key or "")
        answers: list[Enqueued] = []
        for start in range(0, len(rows), INSERT_BATCH):
            answers += self._insert_batch(in_order[start : start + INSERT_BATCH])
        if all(map(is_, in_order, rows)):
            return answers
        by_id = {row.id: answer for row, answer in zip(in_order, answers, strict=True)}
        return [by_id[row.id] for row in rows]

    def _insert_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        missing, answers = rows, dict[UUID, Enqueued]()
        for _ in range(KEY_TRIES):  # once, unless a key's holder is deleted between two statements
            rows_with_free_key = self.db.fetch_prepared(ENQUEUE, rows=as_json(missing))
            inserted = [Enqueued(pk, at, STATUSES[status], True) for pk, at, status in rows_with_free_key]
            if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule
                return inserted
            answers |= {answer.id: answer for answer in inserted}
            for find_holders in (self.find_holders, self._find_last_holders):
                if missing := [row for row in rows if row.id not in answers]:
                    holders = find_holders({row.key for row in missing})
                    answers |= {row.id: holders[row.key] for row in missing if row.key in holders}
            if len(answers) == len(rows):
                return [answers[row.id] for row in rows]
        raise key_taken(missing[0].key)

    def _find_last_holders(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the last holder of each key, live or ended. See key_holders.sql."""
        rows = self.db.query_prepared("key_holders", keys=list(keys))
        return {key: Enqueued(pk, at, STATUSES[status], False) for key, pk, at, status in rows}

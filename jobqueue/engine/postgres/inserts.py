"""Enqueue and insert new tasks on PostgreSQL, up to 1,000 in one statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from operator import attrgetter, is_
from uuid import UUID

from jobqueue.engine.enqueues import Enqueues, act_on_taken_keys
from jobqueue.engine.inserts import INSERT_BATCH, KEY_TRIES, Inserts, key_taken
from jobqueue.engine.postgres.connection import STATUSES, PostgresDatabase, as_array, as_json, as_text_array
from jobqueue.values.records import AlikeTasks, Enqueued, NewTask
from jobqueue.values.states import Status

# Of jobqueue/migrations/sql/enqueue.sql. rows: a JSON list of NewTask in the order of their keys.
ENQUEUE = """
SELECT id, enqueued_at, status FROM jobqueue_enqueue(%(backend)s::text, %(aging)s::float8, %(rows)s::json)
"""
# Of enqueue_plain.sql. PLAIN: the fields that it takes. In all other fields, a plain task has the default.
ENQUEUE_PLAIN = "SELECT jobqueue_enqueue_plain(%(shared)s, %(ids)s, %(args)s, %(kwargs)s)"
PLAIN = ("id", "args", "kwargs", "queue_name", "pool", "task_type", "priority", "max_attempts", "options")
SMALL_CHARS = 4096  # of the arguments of a single task
read_others = attrgetter(*(name for name in NewTask.__struct_fields__ if name not in PLAIN))
NO_OTHERS = read_others(NewTask(id=UUID(int=0), task_type=""))


class PostgresInserts(Inserts):
    db: PostgresDatabase

    def _insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        answers: list[Enqueued] = []
        if (isinstance(rows, AlikeTasks) or len(rows) == 1) and read_others(rows[0]) == NO_OTHERS:
            for start in range(0, len(rows), INSERT_BATCH):
                answers += self._insert_plain(rows[start : start + INSERT_BATCH])
            return answers
        in_order = sorted(rows, key=lambda row: row.key or "")
        for start in range(0, len(rows), INSERT_BATCH):
            answers += self._insert_batch(in_order[start : start + INSERT_BATCH])
        if all(map(is_, in_order, rows)):
            return answers
        by_id = {row.id: answer for row, answer in zip(in_order, answers, strict=True)}
        return [by_id[row.id] for row in rows]

    def _insert_plain(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        first = rows[0]
        aging = f"{first.priority * self.db.options.aging}"
        of_run = (f"{first.max_attempts}", first.options)
        is_small = len(rows) == 1 and len(first.args) + len(first.kwargs) <= SMALL_CHARS
        fetch = self.db.fetch_small if is_small else self.db.fetch_prepared
        ((now,),) = fetch(
            ENQUEUE_PLAIN,
            shared=as_text_array(
                (self.db.backend, first.queue_name, first.pool, first.task_type, f"{first.priority}", aging, *of_run)
            ),
            ids=as_array([row.id.hex for row in rows]),
            args="\n".join([row.args for row in rows]),
            kwargs="\n".join([row.kwargs for row in rows]),
        )
        return [Enqueued(row.id, now, Status.READY, True) for row in rows]

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


class PostgresEnqueues(Enqueues):
    db: PostgresDatabase

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        if len(rows) > INSERT_BATCH or act_on_taken_keys(rows):
            return super().enqueue(rows)
        with self.db.read_committed() if any(row.key is not None for row in rows) else nullcontext():
            return self.inserts.insert(rows)

    def _take_key(self, row: NewTask) -> bool:
        values = {"key": row.key, "task_id": row.id, "seconds": row.unique_for_seconds}
        return bool(self.db.query_prepared("reserve_key", **values))

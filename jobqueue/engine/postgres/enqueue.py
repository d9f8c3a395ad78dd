"""Enqueue as statements of PostgreSQL: one of the server's functions, called once for up to a thousand rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from operator import is_
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from django.db import connections
from psycopg import Connection, Pipeline

from jobqueue.engine.portable.enqueue import ENQUEUE_BATCH, KEY_TRIES, Enqueuer, Hear, key_taken
from jobqueue.engine.postgres.connection import PostgresDatabase, as_json, flush, statement
from jobqueue.records import Enqueued, NewTask, Status

STATUSES = {status.value: status for status in Status}  # to call Status takes a microsecond
YOUNG = 3  # enqueues of a connection: a site's request has one of its own unless CONN_MAX_AGE says otherwise

_asked: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()


def _answers(rows: Sequence[NewTask], cursor: Any) -> list[Enqueued]:
    """Fetch what was inserted, in the order of the rows."""
    with cursor:
        inserted = _inserted(cursor.fetchall())
    if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule
        return inserted
    by_id = {answer.id: answer for answer in inserted}
    return [by_id[row.id] for row in rows]


def _inserted(answers: Iterable[tuple[UUID, datetime, str]]) -> list[Enqueued]:
    return [Enqueued(pk, at, STATUSES[status], True) for pk, at, status in answers]


class PostgresEnqueuer(Enqueuer):
    db: PostgresDatabase

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        if len(rows) > ENQUEUE_BATCH:
            with self.db.transaction():
                return self.insert(rows)
        with self.db.read_committed() if any(row.key is not None for row in rows) else nullcontext():
            return self.insert(rows)

    def enqueue_batches(self, batches: Sequence[Sequence[NewTask]], hear: Hear) -> list[Enqueued]:
        if not Pipeline.is_supported() or any(row.key is not None for rows in batches for row in rows):
            return super().enqueue_batches(batches, hear)
        connection = connections[self.db.using]
        connection.ensure_connection()
        raw = connection.connection
        answers: list[Enqueued] = []
        asked: list[tuple[Sequence[NewTask], Any]] = []

        def listen() -> None:
            answers.extend(some := _answers(*asked.pop()))
            hear(some)

        with self.db.transaction(), connection.wrap_database_errors, raw.pipeline():
            for rows in batches:
                cursor = self.db.prepared_cursor()
                cursor.execute(statement("enqueue"), self._rows_to_insert(rows))
                raw.pgconn.send_flush_request()  # or its answer would come with that to the next
                raw.wait(flush(raw.pgconn))
                if asked:
                    listen()
                asked.append((rows, cursor))
            if asked:
                listen()
        return answers

    def insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        in_order = sorted(rows, key=lambda row: row.key or "")
        answers: list[Enqueued] = []
        for start in range(0, len(rows), ENQUEUE_BATCH):
            answers += self._enqueue_batch(in_order[start : start + ENQUEUE_BATCH])
        if all(map(is_, in_order, rows)):
            return answers
        by_row = dict(zip(map(id, in_order), answers, strict=True))
        return [by_row[id(row)] for row in rows]

    def _enqueue_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        answers: dict[UUID, Enqueued] = {}
        missing = rows
        for _ in range(KEY_TRIES):  # one is enough, unless the conflicting task is deleted at once
            inserted = self._insert_rows(missing)
            if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule: UUIDs are slow as keys
                return inserted
            answers |= {answer.id: answer for answer in inserted}
            missing = [row for row in missing if row.id not in answers]
            for look in (self._holders_of, self._last_holders_of):
                if missing:
                    holders = look({row.key for row in missing})
                    answers |= {row.id: holders[row.key] for row in missing if row.key in holders}
                    missing = [row for row in missing if row.id not in answers]
            if not missing:
                return [answers[row.id] for row in rows]
        raise key_taken(missing[0].key)

    def _last_holders_of(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the last holder of each key, live or ended. See key_holders.sql."""
        rows = self.db.query_prepared("key_holders", backend=self.db.backend, keys=list(keys))
        return {key: Enqueued(pk, at, STATUSES[status], False) for key, pk, at, status in rows}

    def _insert_rows(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """Give an answer for each row that was inserted."""
        if len(rows) == 1 and rows[0].key is None and self._is_young():
            columns = msgspec.structs.asdict(rows[0])
            del columns["key"]
            aging = float(self.db.options.aging)
            return _inserted(self.db.query_prepared("enqueue_one", backend=self.db.backend, aging=aging, **columns))
        return _inserted(self.db.query_prepared("enqueue", **self._rows_to_insert(rows)))

    def _rows_to_insert(self, rows: Sequence[NewTask]) -> dict[str, Any]:
        return {"backend": self.db.backend, "aging": float(self.db.options.aging), "rows": as_json(rows)}

    def _is_young(self) -> bool:
        """Whether this connection may be closed before it pays to have the server plan the function of enqueue.sql."""
        connection = connections[self.db.using]
        connection.ensure_connection()
        asked = _asked[connection.connection] = _asked.get(connection.connection, 0) + 1
        return asked <= YOUNG

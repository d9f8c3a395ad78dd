"""Rows of messages, as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import starmap
from uuid import UUID

from jobqueue.engine.inbox import InboxStatements
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_json
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import NewMessage, StoredMessage
from jobqueue.values.states import Status


class PostgresInbox(InboxStatements):
    db: PostgresDatabase

    def sending(self, messages: Sequence[NewMessage]) -> AbstractContextManager[object]:
        """Begin a transaction only where a dedupe_key needs one: a statement is atomic."""
        return (
            self.db.read_committed() if any(message.dedupe_key is not None for message in messages) else nullcontext()
        )

    def insert(self, messages: Sequence[NewMessage], *, all_or_none: bool = False) -> list[tuple[int, UUID]]:
        return sorted(
            (pk, receiver)
            for pk, receiver in self.db.query_prepared("send", all_or_none=all_or_none, messages=as_json(messages))
        )

    def read(self, ids: Collection[UUID], limit: int) -> list[StoredMessage]:
        if not ids:
            return []
        return [
            *starmap(StoredMessage, self.db.query_prepared("read_messages", ids=as_array(ids), message_limit=limit))
        ]

    def count_unread(self, ids: Collection[UUID]) -> dict[UUID, int]:
        return dict(self.db.query_prepared("count_unread", ids=as_array(ids)))

    def unreachable(self, ids: Collection[UUID]) -> set[UUID]:
        """Lock the receivers FOR KEY SHARE. Return those that another session has locked FOR UPDATE."""
        if not ids:
            return set()
        unreached = set(ids) - {pk for (pk,) in self.db.query("lock_receivers_for_share", ids=list(ids))}
        return unreached - self.db.missing(unreached)

    def delete_of(self, ids: Sequence[UUID]) -> None:
        self.db.execute("delete_messages", ids=list(ids))

    def wake_due(self, limit: int = 1000) -> int:
        with self.db.transaction():
            woken = dict(self.db.query("wake_due", wake_limit=limit))
            self._request_for_blocked(woken)
            if woken:
                failpoint("due.before")
        return len(woken)

    def wake_locked(self, ids: Collection[UUID]) -> int:
        woken = dict(self.db.query_prepared("wake", ids=as_array(ids))) if ids else {}
        self._request_for_blocked(woken)
        return len(woken)

    def _request_for_blocked(self, woken: Mapping[UUID, str]) -> None:
        self.admissions.request([pk for pk, status in woken.items() if status == Status.BLOCKED])

    def suspended_with_messages(self, limit: int) -> list[UUID]:
        return [pk for (pk,) in self.db.query_prepared("suspended_with_messages", sweep_limit=limit)]

"""Messages as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from uuid import UUID

from jobqueue.engine.portable.messages import Messages, stored_message
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_json
from jobqueue.exceptions import TaskFinished
from jobqueue.records import NewMessage, StoredMessage


class PostgresMessages(Messages):
    db: PostgresDatabase

    def send(self, messages: Sequence[NewMessage]) -> list[int]:
        with self.db.read_committed() if any(message.dedupe_key is not None for message in messages) else nullcontext():
            return self.insert_or_raise(messages)

    def insert_or_raise(self, messages: Sequence[NewMessage]) -> list[int]:
        sent = self.insert(messages, all_or_none=True)
        if not sent and (new := self.without_repeats(messages)):
            self.check_receivers(new)
            raise TaskFinished  # it had ended, and was requeued since
        return [pk for pk, _ in sent]

    def insert(self, messages: Sequence[NewMessage], *, all_or_none: bool = False) -> list[tuple[int, UUID]]:
        return sorted(
            (pk, receiver)
            for pk, receiver in self.db.query_prepared(
                "send", backend=self.db.backend, all_or_none=all_or_none, messages=as_json(messages)
            )
        )

    def _unread(self, ids: Collection[UUID], limit: int) -> list[StoredMessage]:
        if not ids:
            return []
        return [*map(stored_message, self.db.query_prepared("read_messages", ids=as_array(ids), message_limit=limit))]

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

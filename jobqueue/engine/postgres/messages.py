"""Messages as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import starmap
from uuid import UUID

from jobqueue.engine.messages import Messages
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_json
from jobqueue.engine.timeouts import LOCK_WAIT
from jobqueue.exceptions import TaskFinished
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import NewMessage, Status, StoredMessage

WAKE_LOCK_TIMEOUT = LOCK_WAIT


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
            for pk, receiver in self.db.query_prepared("send", all_or_none=all_or_none, messages=as_json(messages))
        )

    def _unread(self, ids: Collection[UUID], limit: int) -> list[StoredMessage]:
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

    def wake(self, ids: Iterable[UUID]) -> int:
        """As the portable verb, but raise LockTimeout after waiting WAKE_LOCK_TIMEOUT for a lock."""
        with self.db.transaction(), self.db.lock_timeout(WAKE_LOCK_TIMEOUT):
            return super().wake(ids)

    def wake_locked(self, ids: Collection[UUID]) -> int:
        woken = dict(self.db.query_prepared("wake", ids=as_array(ids))) if ids else {}
        self._request_for_blocked(woken)
        return len(woken)

    def _request_for_blocked(self, woken: Mapping[UUID, str]) -> None:
        self.admissions.request([pk for pk, status in woken.items() if status == Status.BLOCKED])

    def _suspended_with_messages(self, limit: int) -> list[UUID]:
        return [pk for (pk,) in self.db.query_prepared("suspended_with_messages", sweep_limit=limit)]

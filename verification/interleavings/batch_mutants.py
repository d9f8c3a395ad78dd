"""Deliberately broken batches. Each is wrong in one plausible way, and a race must detect it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from jobqueue.api.batches import Batch, BatchPoll
from jobqueue.engine.batches import Batches
from jobqueue.engine.messages import Messages
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.values.batches import BatchMessage
from jobqueue.values.records import NewMessage
from jobqueue.values.states import Status


class _BrokenBatches(PostgresEngine):
    """Replaces the statements of batches."""

    batches_class: type[Batches] = Batches

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batches = self.batches_class(self.db, self.inbox, self.tasks)


class EndsBesideOpenTransactions(_BrokenBatches):
    """Ends a batch although another transaction adds members."""

    class batches_class(Batches):
        def is_alone(self, batch_id: UUID, messages_read: int) -> bool:
            return self.inbox.count_unread([batch_id]).get(batch_id, 0) <= messages_read


class EndsBeforeUnreadMessages(_BrokenBatches):
    """Ends a batch before it has read that members were added."""

    class batches_class(Batches):
        def is_alone(self, batch_id: UUID, messages_read: int) -> bool:
            row = self.db.tasks.filter(pk=batch_id).only("pk")
            return bool(list(self.db.with_lock(row, no_key=False)))


class CountsEachEnd(_BrokenBatches):
    """Counts the second end of a requeued member beside the first one."""

    class batches_class(Batches):
        def record_ends(self, batch_id: UUID, ends: Mapping[UUID, Status]) -> dict[UUID, Status]:
            super().record_ends(batch_id, ends)
            return {}


class LeavesLockedMembers(_BrokenBatches):
    """Ends a cancelled batch without the members that others had locked."""

    class batches_class(Batches):
        def cancel_others(self, batch_id: UUID, limit: int) -> int | None:
            return None


class CallsAfterCommit(PostgresEngine):
    """Enqueues the callbacks of a batch after the commit that counts the last end."""

    class poll_class(BatchPoll):
        def _call(self, name: str, result: Any) -> None:
            transaction.on_commit(partial(super()._call, name, result))


class CallsAgain(PostgresEngine):
    """Forgets which callbacks it has enqueued."""

    class poll_class(BatchPoll):
        def _call(self, name: str, result: Any) -> None:
            super()._call(name, result)
            self.context.state.called.clear()


class AddsToEndedBatch(PostgresEngine):
    """Adds members to a batch whose members have ended."""

    class handle_class(Batch):
        def _send(self, message: BatchMessage) -> None:
            self._engine.messages.send([NewMessage(task_id=self.pk, body=message.encode())])


class RequeueTellsNoBatch(PostgresEngine):
    """Requeues a member without its batch."""

    class messages_class(Messages):
        def tell_batches(self, parent_of: Mapping[UUID, UUID]) -> list[UUID]:
            return []


class RequeueLeavesFailingPoll(PostgresEngine):
    """Tells a batch of a requeued member, although its poll is about to fail without another look."""

    class messages_class(Messages):
        def _stop_failing(self, batches: Any) -> None:
            pass

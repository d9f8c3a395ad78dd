"""Deliberately broken engines of journals. Each is wrong in one plausible way, and a race must detect it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from jobqueue.engine.journal import Journals
from jobqueue.engine.postgres.commit import PostgresCommits
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.engine.postgres.entries import PostgresEntries
from jobqueue.values.journal import Entry
from jobqueue.values.records import NO_EFFECTS, ClaimedTask, Effects, Outcome
from jobqueue.values.states import Status


class RecordsWithoutClaim(PostgresEngine):
    """Records a call although another executor has claimed the workflow."""

    class entries_class(PostgresEntries):
        def record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry]) -> bool | None:
            self.write({claimed.id: entries})
            return False


class ChecksClaimWithoutLocking(PostgresEngine):
    """Reads the claim without a lock, and then records the call."""

    class entries_class(PostgresEntries):
        def record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry]) -> bool | None:
            held = self.db.tasks.filter(pk=claimed.id, status=Status.RUNNING, claim_number=claimed.claim_number)
            if not held.filter(executor_id=executor_id).exists():
                return None
            self.write({claimed.id: entries})
            return False


class WritesEffectsLater(PostgresEngine):
    """Records a call, and performs its effects in a second transaction."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.journal = _LaterEffects(self.db, self.entries, self.commits, self.messages, self.tasks)


class _LaterEffects(Journals):
    def record(
        self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry], effects: Effects = NO_EFFECTS
    ) -> bool:
        is_requested = self._record(claimed, executor_id, entries)
        with self.db.transaction():
            self.commits.perform_effects(claimed, effects)
        return is_requested


class WritesEntriesAfterCommit(PostgresEngine):
    """Commits the outcome of a poll, and then writes its entries."""

    class commits_class(PostgresCommits):
        def _write_journals(self, outcomes: Sequence[Outcome]) -> None:
            transaction.on_commit(partial(super()._write_journals, outcomes), using=self.db.using)


class CancelsAtOnce(PostgresEngine):
    """Ends a workflow at once, although a compensation is open."""

    class entries_class(PostgresEntries):
        def that_finish_themselves(self, ids: Collection[UUID]) -> set[UUID]:
            return set()


class RescueCancelsAtOnce(PostgresEngine):
    """Ends a workflow at its rescue, although a compensation is open."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.executors.entries = CancelsAtOnce.entries_class(self.db)


class RestartEmptiesInbox(PostgresEngine):
    """Deletes the unread messages of a workflow that begins a new journal."""

    class commits_class(PostgresCommits):
        def _write_journals(self, outcomes: Sequence[Outcome]) -> None:
            super()._write_journals(outcomes)
            restarted = [outcome.task_id for outcome in outcomes if outcome.effects.restart is not None]
            self.db.messages.filter(task_id__in=restarted, consumed_at__isnull=True).delete()

"""The journals of workflows: read them, and record calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.db import transaction

from jobqueue.engine.commit import Commits
from jobqueue.engine.database import Part
from jobqueue.engine.entries import EntryStatements, newest
from jobqueue.engine.messages import Messages
from jobqueue.exceptions import ClaimLost
from jobqueue.values.failpoints import failpoint
from jobqueue.values.journal import Entry, Journal
from jobqueue.values.records import NO_EFFECTS, ClaimedTask, Effects


@dataclass(eq=False)
class Journals(Part):
    entries: EntryStatements
    commits: Commits
    messages: Messages

    def read(self, task_id: UUID) -> Journal:
        """Return the recorded calls of a task, and whether its cancel was requested. Locks: none."""
        return self.entries.read(task_id)

    def record(
        self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry], effects: Effects = NO_EFFECTS
    ) -> bool:
        """
        Write entries, with the effects of their calls, in the caller's transaction or in one of its own.

        Return whether a cancel of the task was requested. Raises ClaimLost, and writes nothing, if the executor does
        not hold the claim any more. Raises as a commit does if the database refuses a value or an effect. Receivers of
        messages are woken after the commit.
        Locks: the task's row FOR NO KEY UPDATE, waiting for others; then the receivers FOR KEY SHARE.
        """
        failpoint("record.before")
        if effects is NO_EFFECTS:
            is_requested = self._record(claimed, executor_id, entries)
        else:
            with self.db.transaction():
                is_requested = self._record(claimed, executor_id, entries)  # first, because it checks the claim
                if notified := self.commits.perform_effects(claimed, effects):
                    wake = partial(self.messages.wake_or_defer, notified)
                    transaction.on_commit(wake, using=self.db.using)
        failpoint("record.after")
        return is_requested

    def _record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry]) -> bool:
        is_requested = self.entries.record(claimed, executor_id, newest(entries))
        if is_requested is None:
            raise ClaimLost
        return is_requested

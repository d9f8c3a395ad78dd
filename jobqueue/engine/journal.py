"""The journals of workflows: read them, record calls, and change them for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from jobqueue.engine.commit import Commits
from jobqueue.engine.database import Part, json_from
from jobqueue.engine.entries import HAS_RUN, EntryStatements, newest
from jobqueue.engine.messages import Messages
from jobqueue.engine.tasks import Tasks
from jobqueue.exceptions import ChangeRefused, ClaimLost, TaskNotFound
from jobqueue.models import JournalEntry, Task
from jobqueue.models.clock import Clock
from jobqueue.values.failpoints import failpoint
from jobqueue.values.journal import Entry, EntryKind, EntryStatus, Journal
from jobqueue.values.records import NO_EFFECTS, ClaimedTask, Effects
from jobqueue.values.states import FINAL, Status


@dataclass(eq=False)
class Journals(Part):
    entries: EntryStatements  # of journals
    commits: Commits
    messages: Messages
    tasks: Tasks

    def read(self, task_id: UUID) -> Journal:
        """Return the recorded calls of a task, and whether its cancel was requested. Locks: none."""
        return self.entries.read(task_id)

    def record(
        self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry], effects: Effects = NO_EFFECTS
    ) -> bool:
        """
        Write entries, with the effects of their calls, in the caller's transaction or in one of its own.

        Return whether a cancel of the task was requested. Then it spawns no children, and forgets their entries, unless
        effects.finishes_itself. Raises ClaimLost, and writes nothing, if the executor does
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
                if is_requested and effects.spawn:
                    left = replace(effects, journal=entries).without_children()
                    self.entries.forget(claimed.id, {e.name for e in entries} - {e.name for e in left.journal})
                    effects = left
                if notified := self.commits.perform_effects(claimed, effects):
                    wake = partial(self.messages.wake_or_defer, notified)
                    transaction.on_commit(wake, using=self.db.using)
        failpoint("record.after")
        return is_requested

    def record_steps(
        self, executor_id: UUID, records: Sequence[tuple[ClaimedTask, Sequence[Entry]]]
    ) -> dict[UUID, bool]:
        """
        Write entries of several workflows of one executor, in one transaction. Waits for no other session.

        Return whether a cancel was requested, by task. Missing: the claim is lost, or another session has locked the
        row. Then use record(). Raises as record() does, and writes nothing, if the database refuses any of the values.
        """
        failpoint("record.before")
        asked = self.entries.record_steps(executor_id, [(claimed, newest(entries)) for claimed, entries in records])
        failpoint("record.after")
        return asked

    def _record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry]) -> bool:
        is_requested = self.entries.record(claimed, executor_id, newest(entries))
        if is_requested is None:
            raise ClaimLost
        return is_requested

    # --- changes for people

    def give(self, task_id: UUID, name: str, value: str) -> ChangedTasks:
        """
        Give a failed step, compensation or child its result, as JSON text. The workflow goes on with it.

        Each change raises TaskNotFound, or ChangeRefused with the reason; LockTimeout if another transaction has locked
        the task for more than a second. Return the tasks that may be READY now: the caller notifies after the commit.
        Locks: the workflow, then related tasks, skipping locked ones.
        """
        with self._changing(task_id, name) as (row, entry):
            self._check_failed(row, entry)
            self._set(entry, EntryStatus.SUCCESSFUL, value=json_from(value), finished_at=Clock())
            return self._go_on(row, failed_child=None)

    def retry(self, task_id: UUID, name: str) -> ChangedTasks:
        """Run a failed step, compensation or child again, with all its attempts. Raises and returns as give()."""
        with self._changing(task_id, name) as (row, entry):
            self._check_failed(row, entry)
            if entry.kind == EntryKind.SPAWN:
                return self._go_on(row, failed_child=entry.child_id)
            self._set(entry, EntryStatus.RETRYING, attempts=0, due_at=Clock(), finished_at=None)
            return self._go_on(row, failed_child=None)

    def skip(self, task_id: UUID, name: str) -> ChangedTasks:
        """End a sleep, or a wait for messages or children as if it had timed out. Raises and returns as give()."""
        with self._changing(task_id, name) as (row, entry):
            if entry.kind not in (EntryKind.SLEEP, EntryKind.RECEIVE, EntryKind.WAIT):
                raise ChangeRefused(_("%(name)s is no wait; only waits can be skipped.") % {"name": name})
            if entry.status != EntryStatus.WAITING:
                raise ChangeRefused(_("The wait %(name)s is over.") % {"name": name})
            if row.status in FINAL:
                raise ChangeRefused(_("The workflow has ended; requeue it first."))
            is_sleep = entry.kind == EntryKind.SLEEP
            self._set(entry, EntryStatus.SKIPPED if is_sleep else EntryStatus.TIMED_OUT, finished_at=Clock())
            return self._go_on(row)

    def rewind(self, task_id: UUID, name: str) -> ChangedTasks:
        """
        Forget an entry and all later ones, and cancel the live children that they have spawned.

        The workflow runs on from there. Messages that it has received since are not received again. Raises and returns
        as give().
        """
        with self._changing(task_id, name) as (row, entry):
            if row.status == Status.SUCCESSFUL:
                raise ChangeRefused(_("The workflow was successful; enqueue another one."))
            later = self.entries.of(task_id).filter(pk__gte=entry.pk)
            earlier = self.entries.of(task_id).filter(pk__lt=entry.pk)
            undone = earlier.filter(kind=EntryKind.COMPENSATION, status__in=HAS_RUN).order_by("pk").first()
            if undone is not None:
                raise ChangeRefused(
                    _("The compensation %(name)s has run; rewind to it, or to an earlier entry.")
                    % {"name": undone.name}
                )
            spawned = later.filter(kind=EntryKind.SPAWN, child_id__isnull=False)
            children = [child for child in spawned.values_list("child_id", flat=True) if child is not None]
            later._raw_delete(self.db.using)
            report = self.tasks.cancel(children, tree=True, wait=False)
            if report.busy:
                raise ChangeRefused(_("A child of the workflow is locked by another transaction; try again later."))
            self.messages.withdraw_ends(dict.fromkeys(children, task_id))
            changed = self._go_on(row, failed_child=None)
            return ChangedTasks(changed.ready | report.parents, has_requested=report.requested > 0)

    @contextmanager
    def _changing(self, task_id: UUID, name: str) -> Iterator[tuple[Task, JournalEntry]]:
        """Lock a task that does not run, and read an entry of its journal."""
        with self.db.bounded(f"task {task_id}"):
            row = self.db.lock([task_id], wait=True).only("pk", "status", "inner_state").first()
            if row is None:
                raise TaskNotFound(f"There is no task {task_id}.")
            entry = self.entries.of(task_id).filter(name=name).first()
            if entry is None:
                raise ChangeRefused(_("The journal has no entry %(name)s.") % {"name": name})
            if row.status == Status.RUNNING:
                raise ChangeRefused(_("The workflow is running; try again when it waits or has ended."))
            yield row, entry

    def _check_failed(self, row: Task, entry: JournalEntry) -> None:
        """Raise ChangeRefused unless the entry has failed, and the workflow has not gone on after that."""
        values = {"name": entry.name}
        if entry.kind not in (EntryKind.STEP, EntryKind.COMPENSATION, EntryKind.SPAWN):
            raise ChangeRefused(_("%(name)s is no step, compensation or child.") % values)
        if row.status in (Status.SUCCESSFUL, Status.CANCELLED):
            raise ChangeRefused(_("The workflow has ended, and not because of %(name)s.") % values)
        if entry.status == EntryStatus.SUCCESSFUL:
            raise ChangeRefused(_("%(name)s was successful; rewind to it to run it again.") % values)
        is_failed = entry.status in (EntryStatus.FAILED, EntryStatus.CANCELLED, EntryStatus.TIMED_OUT)
        if entry.status != EntryStatus.RETRYING and not is_failed:
            raise ChangeRefused(_("%(name)s has not failed.") % values)
        if is_failed and row.status != Status.FAILED:
            raise ChangeRefused(_("The workflow has gone on after the failure of %(name)s; rewind to it.") % values)
        if (compensation := self._compensation_around(entry)) is not None:
            raise ChangeRefused(
                _("The compensation %(name)s has run; rewind to it, or to an earlier entry.") % {"name": compensation}
            )

    def _compensation_around(self, entry: JournalEntry) -> str | None:
        """Return the compensation of a block around a call, if it has run. One that was over before is none."""
        if entry.kind == EntryKind.COMPENSATION:
            return None
        run = self.entries.of(entry.task_id).filter(kind=EntryKind.COMPENSATION, status__in=HAS_RUN, pk__lt=entry.pk)
        if entry.started_at is not None:
            run = run.exclude(status=EntryStatus.SUCCESSFUL, finished_at__lte=entry.started_at)
        return run.order_by("pk").values_list("name", flat=True).first()

    def _set(self, entry: JournalEntry, status: EntryStatus, **columns: Any) -> None:
        self.entries.rows.filter(pk=entry.pk).update(status=status, **columns)

    def _go_on(self, row: Task, **state: Any) -> ChangedTasks:
        """Run a locked workflow, which tests no wait first. state: members of its state to change; None: without."""
        if isinstance(row.inner_state, dict):
            changed = row.inner_state | {"waiting": None} | {key: value and str(value) for key, value in state.items()}
            columns = {"inner_state": {key: value for key, value in changed.items() if value is not None}}
            self.db.tasks.filter(pk=row.pk).update(**columns)
        if row.status not in FINAL:
            self.tasks.make_ready(self.db.tasks.filter(pk=row.pk))
            return ChangedTasks(frozenset({row.pk}))
        report = self.tasks.requeue([row.pk], wait=False)
        if report.busy:
            raise ChangeRefused(_("A task of the workflow is locked by another transaction; try again later."))
        if report.key_taken:
            raise ChangeRefused(_("The workflow cannot be requeued: another task has the key of one of its tasks."))
        return ChangedTasks(frozenset({row.pk}) | report.related)


@dataclass(frozen=True, slots=True)
class ChangedTasks:
    """The result of a change of a journal."""

    ready: frozenset[UUID]  # tasks that may be READY now
    has_requested: bool = False  # a running child was asked to end

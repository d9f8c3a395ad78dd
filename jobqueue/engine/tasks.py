"""Change and delete tasks: cancel, requeue, run now, discard, delete, prune."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import BooleanField, Case, Exists, ExpressionWrapper, F, OuterRef, Q, When
from django.db.models.functions import Coalesce

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.counters import Counters
from jobqueue.engine.database import Part, appended
from jobqueue.engine.ends import ended
from jobqueue.engine.entries import EntryStatements
from jobqueue.engine.heartbeats import silent
from jobqueue.engine.inbox import UNSUCCESSFUL
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.limit_conditions import ready_status
from jobqueue.engine.messages import Messages, make_ending
from jobqueue.engine.reports import Reports
from jobqueue.engine.shared_failures import SharedFailures
from jobqueue.models import Executor, Task, TaskQuerySet
from jobqueue.models.clock import Clock, clock_to_compare, rank_from
from jobqueue.values.batches import BATCH
from jobqueue.values.changes import CancelReport, ChangeReport, RequeueReport
from jobqueue.values.failpoints import failpoint
from jobqueue.values.history import Event, format_line
from jobqueue.values.records import BULK_ACTION
from jobqueue.values.states import FINAL, WAITING, Status

PARENTS_PER_QUERY = 1000
EXECUTORS_KEPT_SECONDS = 86_400
# A workflow has a state from its first commit on. One that ended without any commit was claimed, and has not succeeded.
MAY_HAVE_JOURNAL = ExpressionWrapper(
    Q(inner_state__isnull=False) | Q(claim_number__gt=0) & ~Q(status=Status.SUCCESSFUL), BooleanField()
)
# For cancel() and its `may`.
CANCEL_COLUMNS = (
    "pk", "status", "parent_id", "parent_notified_at", "cancel_requested_at", "claim_number", "backend", "task_type",
    "queue_name",
)  # fmt: skip


@dataclass(slots=True)
class LockedRow:
    """Columns of a locked row. A model with deferred fields takes several times as long to build."""

    pk: UUID  # of the task
    status: str  # before the change
    claim_number: int  # of the last claim
    cancel_requested_at: datetime | None  # None: no cancel was requested
    parent_id: UUID | None  # None: no parent
    parent_notified_at: datetime | None  # None: the parent has got no message about the end
    executor_id: UUID | None  # which has claimed it; None: no executor


@dataclass(eq=False)
class Tasks(Part):
    """
    Changes of tasks that people ask for, and their deletion.

    It has more than 20 methods because each change of tasks is one.
    """

    inserts: Inserts
    messages: Messages
    counters: Counters
    admissions: Admissions
    reports: Reports
    entries: EntryStatements  # of journals
    failures: SharedFailures  # of workflows and their children

    # --- cancel

    def cancel(
        self,
        ids: Collection[UUID],
        *,
        tree: bool = False,
        wait: bool = True,
        at_once: bool = False,
        may: Callable[[Task], bool] | None = None,
    ) -> CancelReport:
        """
        Cancel live tasks. Queued tasks end at once, running tasks at the next heartbeat of their executor.

        A workflow whose journal defers the cancel becomes READY, and ends when its compensations have run. at_once: end
        it without them, and running tasks, too: their executors lose the claim.
        tree: cancel all live descendants, too. A descendant with an earlier request is not counted again.
        may: whether a task may be cancelled. If not, it is `not_allowed`; its descendants are checked nevertheless.
        The caller wakes `parents` after the commit.
        Locks: the rows in id order. Tasks are `busy` if other sessions have locked them, or a parent that would get a
        message, unless `wait`. No task below a `busy` one is cancelled: a parent that goes on would read that its child
        was cancelled.
        """
        requested = set(ids)
        with self.db.transaction():
            targets = requested | self.descendants(requested) if tree else requested
            rows = list(self.db.lock(targets, wait=wait).only(*CANCEL_COLUMNS))
            # A commit that held a lock may have spawned children. Their ids are later, so the order of locks holds.
            while tree and (children := self.descendants(requested) - targets):
                targets |= children
                rows += self.db.lock(children, wait=wait).only(*CANCEL_COLUMNS)
            rows = rows if wait else self._with_free_parents(rows)
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(targets, rows)
            if tree and busy:
                below = self.descendants(busy)
                rows = [row for row in rows if row.pk not in below]
                busy -= below - requested  # the next cancel of the task above them finds the others
                busy |= below & requested
            repeated = {row.pk for row in rows if row.cancel_requested_at is not None} - requested
            denied = frozenset(row.pk for row in rows if may is not None and row.status not in FINAL and not may(row))
            ended, running, parents = self.cancel_locked([row for row in rows if row.pk not in denied], at_once=at_once)
        return CancelReport(
            cancelled=len(ended),
            requested=len(running - repeated),
            skipped=len(requested - ended - running - busy - denied),
            parents=frozenset(parents),
            busy=busy,
            not_allowed=denied,
        )

    def _with_free_parents(self, rows: list[Task]) -> list[Task]:
        """Leave out tasks that would end now if the message about it would wait for a lock on their parent."""
        queued = [row for row in rows if row.status not in (Status.RUNNING, *FINAL)]
        parent_of = {row.pk: end.task_id for row in queued if (end := make_ending(row, Status.CANCELLED, None))}
        unreachable = self.messages.inbox.unreachable({*parent_of.values()} - {row.pk for row in rows})
        return [row for row in rows if parent_of.get(row.pk) not in unreachable] if unreachable else rows

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        """Return the live descendants of these tasks, also below tasks that have ended, but no members of batches."""
        live: set[UUID] = set()
        seen: set[UUID] = set()
        parents = list(ids)
        while parents:
            part, parents = parents[:PARENTS_PER_QUERY], parents[PARENTS_PER_QUERY:]
            below = self.db.tasks.filter(parent_id__in=part).exclude(parent__task_type=BATCH)
            children = dict(below.values_list("pk", "finished_at"))
            live |= {pk for pk, finished_at in children.items() if finished_at is None}
            parents += children.keys() - seen
            seen |= children.keys()
        return live

    def cancel_locked(
        self, rows: Iterable[Task | LockedRow], *, at_once: bool = False
    ) -> tuple[set[UUID], set[UUID], set[UUID]]:
        """
        End the locked tasks that are not RUNNING and whose journals do not defer it. Request the cancel of the others.

        A batch cancels its members first, a part with each poll. Return the ended tasks, the others, and the tasks to
        wake after the commit: parents that got a message, and workflows and batches that are READY now. at_once: as in
        cancel().
        """
        live = {row.pk: row for row in rows if row.status not in FINAL}
        batches = set[UUID]() if at_once else self.messages.cancel_batches(live)
        running = {pk for pk, row in live.items() if row.status == Status.RUNNING} - batches
        deferring = set[UUID]()
        if at_once:
            self.db.tasks.filter(pk__in=running).update(claimed_at=None, executor_id=None)
            running = set()
        else:
            claimed = {pk for pk, row in live.items() if row.claim_number > 0}
            deferring = self.entries.that_finish_themselves(claimed - running - batches)
        queued = live.keys() - running - deferring - batches
        self.cancel_queued(queued)
        self.request_cancel(running | deferring)
        if asked := [pk for pk in deferring if live[pk].cancel_requested_at is None]:
            self.make_ready(self.db.tasks.filter(pk__in=asked))
        endings = [ending for pk in queued if (ending := make_ending(live[pk], Status.CANCELLED, None))]
        return queued, running | deferring | batches, self.messages.report_ends(endings) | deferring | batches

    def request_cancel(self, ids: Collection[UUID]) -> None:
        """Ask locked tasks to end. Their executors read it with a heartbeat, workflows with their journals."""
        if ids:
            self.db.tasks.filter(pk__in=ids).update(cancel_requested_at=Coalesce("cancel_requested_at", Clock()))

    def cancel_queued(self, ids: Collection[UUID]) -> None:
        """End tasks that this transaction has locked or inserted."""
        if ids:
            rows = self.db.tasks.filter(pk__in=ids)
            rows.update(
                status=Status.CANCELLED,
                cancel_requested_at=Clock(),
                finished_at=Clock(),
                wake_at=None,
                counts_while_waiting=False,
            )
            self.admissions.request(ids, are_freed=True)
            ended(self.db, ids, Status.CANCELLED)

    # --- requeue

    def requeue(self, ids: Collection[UUID], *, wait: bool = True) -> RequeueReport:
        """
        Put FAILED and CANCELLED tasks back READY, with all their attempts, their state and inbox.

        A task stays unchanged if a live task holds its key. Bulk actions stay unchanged, too: the permission to requeue
        is none to repeat another user's bulk action. A FAILED batch requeues its members; a CANCELLED one stays so. A
        child notifies its parent when it ends again. A workflow that failed because of a child, and the child, are
        requeued together, also if only one is among the ids; the report has the others. Locks: the rows in id order,
        then related ones and parents, skipping locked ones, but for batches. Rows locked by other sessions are `busy`
        unless `wait`; so are those whose related ones are locked. Waits for a concurrent insert of the same key.
        """
        with self.db.transaction():
            seen = self.failures.lock(ids, wait=wait)
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(ids, seen)
            related, pairs, held_up = self.failures.lock_related(seen)
            busy |= held_up
            rows = [row for row in (*seen, *related) if may_requeue(row) and row.pk not in held_up]
            requeued = self._requeue_free(self._with_free_keys(rows))
            self.failures.wait_again(pairs)
            self.messages.requeue_members([row.pk for row in rows if row.task_type == BATCH])
            self.entries.forget_cancels([row.pk for row in rows if row.status == Status.CANCELLED and row.has_state])
        asked = [row for row in rows if row.pk in set(ids)]
        return RequeueReport(
            requeued=requeued,
            key_taken=len(rows) - requeued,
            skipped=len(set(ids) - busy) - len(asked),
            busy=busy,
            related=frozenset(row.pk for row in related),
        )

    def _with_free_keys(self, rows: Sequence[Task]) -> list[UUID]:
        """Return the tasks without a key, and the first task of each key that no live task holds."""
        keys = {row.key for row in rows if row.key is not None}
        taken = set(self.inserts.holders(keys).values_list("key", flat=True)) if keys else set()
        free = []
        for row in rows:
            if row.key not in taken:
                free.append(row.pk)
                taken |= {row.key} - {None}
        return free

    def _requeue_free(self, ids: Sequence[UUID]) -> int:
        """Requeue locked tasks. On a key conflict, retry in halves, so that only conflicting tasks stay unchanged."""
        try:
            with transaction.atomic(using=self.db.using):
                return self._requeue_locked(ids)
        except IntegrityError:
            if len(ids) == 1:
                return 0
        half = len(ids) // 2
        return self._requeue_free(ids[:half]) + self._requeue_free(ids[half:])

    def _requeue_locked(self, ids: Sequence[UUID]) -> int:
        rows = self.db.tasks.filter(pk__in=ids, status__in=UNSUCCESSFUL)
        parent_of = dict(rows.values_list("pk", "parent_id"))
        count = rows.update(
            status=ready_status(),
            rank=rank_from(Clock(), self.db.options.aging),
            attempts=0,
            executor_losses=0,
            wake_at=None,
            expires_at=None,
            cancel_requested_at=None,
            finished_at=None,
            return_value=None,
            parent_notified_at=None,
            history=appended(format_line(Event.REQUEUED, self.db.now())),
            taken_over_by_id=None,
        )
        self.admissions.request(parent_of)
        parent_of_child = {pk: parent for pk, parent in parent_of.items() if parent is not None}
        self.messages.withdraw_ends(parent_of_child)
        if failed := self.messages.tell_batches(parent_of_child):
            self._requeue_locked(failed)
        return count

    # --- run now, discard, delete

    def run_now(self, ids: Collection[UUID], *, wait: bool = True) -> ChangeReport:
        """
        Make SCHEDULED and SUSPENDED tasks READY, as if their time had come. Locks: the rows in id order.

        The next poll of a SUSPENDED task does not see a timeout: `timed_out` stays False.
        """

        return self._change(ids, WAITING, self.make_ready, wait=wait)

    def make_ready(self, rows: TaskQuerySet) -> int:
        """Make the SCHEDULED and SUSPENDED ones among locked tasks READY. Return how many."""
        scheduled = list(rows.scheduled().values_list("pk", flat=True))
        suspended = list(rows.suspended().values_list("pk", flat=True))
        self.db.tasks.filter(pk__in=scheduled).update(
            status=ready_status(),
            counts_while_waiting=Case(When(rate_key__isnull=True, then=False), default=F("counts_while_waiting")),
            rank=rank_from(Clock(), self.db.options.aging),
            wake_at=None,
        )
        self.admissions.request(scheduled)
        self.messages.inbox.wake_locked(suspended)
        return len(scheduled) + len(suspended)

    def discard(self, ids: Collection[UUID], *, wait: bool = True) -> ChangeReport:
        """Make FAILED tasks CANCELLED now, so that no list of failures has them. Locks: the rows in id order."""

        def change(rows: TaskQuerySet) -> int:
            return rows.update(status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock())

        return self._change(ids, (Status.FAILED,), change, wait=wait)

    def delete(self, ids: Collection[UUID], *, wait: bool = True) -> ChangeReport:
        """Delete ended tasks with their messages. Locks: the rows FOR UPDATE in id order."""

        def change(rows: TaskQuerySet) -> int:
            ids = list(rows.values_list("pk", flat=True))
            self._delete_locked(ids, ids)
            return len(ids)

        return self._change(ids, FINAL, change, wait=wait, no_key=False)

    def _change(
        self,
        ids: Collection[UUID],
        statuses: Collection[Status],
        change: Callable[[TaskQuerySet], int],
        *,
        wait: bool,
        no_key: bool = True,
    ) -> ChangeReport:
        """Lock tasks, then change those with one of the statuses. Rows locked elsewhere are `busy` unless `wait`."""
        with self.db.transaction():
            rows = self.db.by_ids(ids).order_by("pk").only("pk")
            seen = list(self.db.with_lock(rows, wait=wait, no_key=no_key))
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(ids, seen)
            changed = change(self.db.tasks.filter(pk__in=[row.pk for row in seen], status__in=statuses))
        return ChangeReport(changed=changed, skipped=len(set(ids) - busy) - changed, busy=busy)

    # --- prune

    def prune(self, limit: int = 1000) -> int:
        """
        Delete ended tasks older than RETENTION, their messages first.

        Executors and the counters of minutes are deleted after a day, those of hours after 31.

        Return the number of deleted tasks, or `limit` if that is more and there may be more rows of another table.
        limit: of each table, of tasks per status. Deletes no task while another session prunes.
        Locks: the rows FOR UPDATE, skipping locked ones: a task stays while a sender locks it.
        """
        is_full = self.admissions.prune(limit) >= limit
        with self.db.transaction():
            if not self._may_prune():
                return limit if is_full else 0
            is_full |= max(self._prune_executors(limit)) >= limit
            is_full |= self.counters.prune_periods(limit)
            self.reports.delete_orphans(limit)
            kept = self.db.options.retention.items()
            count = sum(self.prune_status(status, seconds, limit) for status, seconds in kept if seconds is not None)
            if count:
                failpoint("prune.before")
        if count:
            failpoint("prune.after")
        return max(count, limit) if is_full else count

    def _prune_executors(self, limit: int) -> tuple[int, int]:
        """Delete old executors, and heartbeats without an executor. Return how many of each."""
        old = self.db.executors.filter(silent(EXECUTORS_KEPT_SECONDS))
        gone = self.db.with_lock(old, no_key=False).only("pk")[:limit]
        executors, _ = self.db.executors.filter(pk__in=[row.pk for row in gone]).delete()
        has_executor = Exists(Executor.objects.filter(pk=OuterRef("pk")))
        orphans = self.db.heartbeats.filter(~has_executor, silent(EXECUTORS_KEPT_SECONDS, at="at"))
        left = self.db.with_lock(orphans, no_key=False).only("pk")[:limit]
        heartbeats, _ = orphans.filter(pk__in=[row.pk for row in left]).delete()
        return executors, heartbeats

    def prune_status(self, status: str, kept_seconds: float, limit: int = 1000) -> int:
        """Delete tasks that ended with a status, and before `kept_seconds`, the oldest first. Locks: as prune()."""
        # `status = ...` has no order, so that PostgreSQL may sort by finished_at what it finds with another index.
        old = self.db.tasks.filter(
            status__range=(status, status), finished_at__lte=clock_to_compare(after=-kept_seconds)
        )
        old = old.order_by("backend", "status", "finished_at")
        with self.db.transaction():
            rows: list[Any] = list(
                self.db.with_lock(old.annotate(has_journal=MAY_HAVE_JOURNAL), no_key=False).only("pk")[:limit]
            )
            self._delete_locked([row.pk for row in rows], [row.pk for row in rows if row.has_journal])
            return len(rows)

    def prune_messages(self, limit: int = 1000) -> int:
        """
        Delete messages and entries of journals of the ended tasks that prune() deletes next.

        A single task may have too many for it. Return how many. limit: of each status. Locks: these rows.
        """
        count = 0
        for status, kept_seconds in self.db.options.retention.items():
            if kept_seconds is None:
                continue
            old = self.db.tasks.filter(status=status, finished_at__lte=clock_to_compare(after=-kept_seconds)).order_by(
                "finished_at"
            )
            next_one = list(old.values_list("pk", flat=True)[:1])
            rows = self.db.messages.filter(task_id__in=next_one).order_by("pk")
            ids = list(rows.values_list("pk", flat=True)[:limit])
            count += self.db.messages.filter(pk__in=ids)._raw_delete(self.db.using) if ids else 0
            count += sum(self.entries.delete_some(pk, limit) for pk in next_one)
        return count

    def _delete_locked(self, ids: Sequence[UUID], with_journal: Sequence[UUID]) -> None:
        if with_journal:
            self.entries.delete_of(with_journal)
        if ids:
            self.messages.inbox.delete_of(ids)
            self.reports.delete_of(ids)
            self.db.tasks.filter(pk__in=ids)._raw_delete(self.db.using)

    def _may_prune(self) -> bool:
        """
        Return whether no other session prunes. Without such a lock, two sessions delete different rows, or one waits.
        """
        return True


def may_requeue(row: Task) -> bool:
    if row.task_type == BATCH and row.status == Status.CANCELLED:
        return False  # it counts its members no more
    return row.status in UNSUCCESSFUL and row.task_type != BULK_ACTION

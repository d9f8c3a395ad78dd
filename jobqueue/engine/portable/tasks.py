"""Tasks: enqueue, cancel, requeue and prune them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Case, F, QuerySet, When
from django.db.models.functions import Coalesce
from msgspec.structs import replace

from jobqueue.engine.clock import Clock, now_plus, rank_from
from jobqueue.engine.portable.admissions import Admissions, ready_status
from jobqueue.engine.portable.counters import Counters
from jobqueue.engine.portable.database import Part, appended, json_from
from jobqueue.engine.portable.messages import UNSUCCESSFUL, Messages, ending_of
from jobqueue.engine.portable.progress import ProgressTable
from jobqueue.exceptions import DuplicateKey
from jobqueue.failpoints import failpoint
from jobqueue.history import Event, line_of
from jobqueue.models import CounterDelta, FallbackHeartbeat, KeyReservation, Task, TaskQuerySet
from jobqueue.records import FINAL, WAITING, CancelReport, ChangeReport, Enqueued, NewTask, RequeueReport, Status

ENQUEUE_BATCH = 1000  # rows per INSERT
KEY_TRIES = 3  # a task with the key may come and go between the insert and the query
ONCE_TRIES = 10  # other sessions may insert the same idempotency keys
PARENTS_PER_QUERY = 1000
EXECUTORS_KEPT_SECONDS = 86_400
# Fields of a NewTask that are columns of its row.
SAME_COLUMNS = (
    "id", "queue_name", "pool", "task_type", "priority", "key", "idempotency_key", "idempotency_digest", "parent_id",
    "max_attempts", "schedule_id", "concurrency_key", "concurrency_limit", "hold_while_retrying", "rate_key",
    "rate_limit", "rate_seconds", "predecessor_id",
)  # fmt: skip
# Columns that a replaced task takes from the row that replaces it.
REPLACED_COLUMNS = (
    "queue_name", "pool", "task_type", "priority", "max_attempts", "concurrency_key", "concurrency_limit",
    "hold_while_retrying", "rate_key", "rate_limit", "rate_seconds",
)  # fmt: skip
REPLACEABLE = (Status.READY, Status.BLOCKED, Status.SCHEDULED)
# For cancel() and its `may`.
CANCEL_COLUMNS = (
    "pk", "status", "parent_id", "parent_notified_at", "cancel_requested_at", "backend", "task_type", "queue_name"
)  # fmt: skip


@dataclass(slots=True)
class LockedRow:
    """Columns of a locked row. A model with deferred fields takes several times as long to build."""

    pk: UUID
    status: str
    claim_number: int
    cancel_requested_at: datetime | None
    parent_id: UUID | None
    parent_notified_at: datetime | None
    executor_id: UUID | None


def acts_on_taken_key(row: NewTask) -> bool:
    """Whether the row wants more than the answer which task has its key."""
    return row.on_conflict != "keep" or row.unique_for_seconds is not None


@dataclass(eq=False)
class Tasks(Part):
    messages: Messages
    counters: Counters
    admissions: Admissions
    progress: ProgressTable

    # --- enqueue

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert tasks in the caller's transaction. Return one answer for each row, in the same order.

        A row with the key of a live task is not inserted. The answer names that task, which may have ended since. If
        the row replaces, the waiting task gets its values, or the row starts after the running task. Raises
        DuplicateKey if the transaction cannot see the task that has a key, or if a row raises and its key is taken.
        Locks: the new rows, in the order of their keys, so that two callers with the same keys do not deadlock.
        Waits for a concurrent insert of the same key.
        """
        with self.db.transaction():
            return self._insert_unique(rows) if any(map(acts_on_taken_key, rows)) else self.insert(rows)

    def _insert_unique(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """Insert rows, and do what each wants if its key is taken. Waits for other sessions with the same keys."""
        reserved = self._reserve([row for row in rows if row.unique_for_seconds is not None])
        new = [row for row in rows if row.id not in reserved]
        answers = reserved | dict(zip((row.id for row in new), self.insert(new), strict=True))
        taken = sorted((row for row in rows if not answers[row.id].created), key=lambda row: row.key or "")
        for row in taken:
            if row.on_conflict == "raise":
                raise DuplicateKey(f"The key {row.key!r} is taken by task {answers[row.id].id}.")
        replacing = [row for row in taken if row.on_conflict == "replace"]
        if len(replacing) > 1:  # lock their tasks in id order first, so that two callers do not deadlock
            list(self.db.with_lock(self._holders({row.key for row in replacing}).order_by("pk"), wait=True).only("pk"))
        for row in replacing:
            answers[row.id] = self._replace(row, may_follow=row.id not in reserved) or answers[row.id]
        for row in taken:
            if row.unique_for_seconds is not None and row.id not in reserved:  # it reserved the key for another task
                self._reservations(row.key).filter(task_id=row.id).update(task_id=answers[row.id].id)
        return [answers[row.id] for row in rows]

    def _holders(self, keys: Collection[str | None]) -> TaskQuerySet:
        """Select the live tasks that hold keys."""
        return self.db.tasks.live().filter(key__in=keys, successor_id__isnull=True)

    def _reservations(self, key: str | None) -> QuerySet[KeyReservation]:
        return KeyReservation.objects.using(self.db.using).filter(backend=self.db.backend, key=key)

    def _reserve(self, rows: Sequence[NewTask]) -> dict[UUID, Enqueued]:
        """Reserve the keys of rows. Return the tasks for which others are reserved, by the row's id."""
        now = self.db.now()
        taken: dict[UUID, Enqueued] = {}
        for row in sorted(rows, key=lambda row: row.key or ""):
            until = now + timedelta(seconds=row.unique_for_seconds or 0.0)
            held_by = self._reserve_key(row.key or "", row.id, now, until)
            if held_by != row.id:
                status = self.db.by_ids([held_by]).values_list("status", flat=True).first()
                taken[row.id] = Enqueued(held_by, now, Status(status or Status.SUCCESSFUL), False)
        return taken

    def _reserve_key(self, key: str, pk: UUID, now: datetime, until: datetime) -> UUID:
        """Reserve a key for a task until a time, unless another task has it. Return the task that has it."""
        rows = self._reservations(key)
        row, is_new = KeyReservation.objects.using(self.db.using).get_or_create(
            backend=self.db.backend, key=key, defaults={"task_id": pk, "expires_at": until}
        )
        if is_new or rows.filter(expires_at__lte=now).update(task_id=pk, expires_at=until):
            return pk
        return UUID(str(row.task_id))

    def _replace(self, row: NewTask, *, may_follow: bool) -> Enqueued | None:
        """
        Give the waiting task that has the key the values of this row.

        If that task has started, insert the row to start after it. may_follow: otherwise do nothing, and return None.
        """
        for _ in range(KEY_TRIES):
            for holder in self.db.with_lock(self._holders({row.key}), wait=True).only(
                "pk", "status", "polls", "enqueued_at"
            ):
                if holder.status in REPLACEABLE and holder.polls == 0:
                    return self._replace_waiting(holder, row)
                if not may_follow:
                    return None
                self.db.tasks.filter(pk=holder.pk).update(successor_id=row.id)
                return self.insert([replace(row, predecessor_id=holder.pk)])[0]
            if not may_follow:
                return None
            if (answer := self.insert([row])[0]).created:
                return answer
        raise key_taken(row.key)

    def _replace_waiting(self, holder: Task, row: NewTask) -> Enqueued:
        """Replace the values of a locked task that has not started. Its longest wait counts from enqueued_at."""
        now = self.db.now()
        wake_at = moment(row.wake_at, row.wake_after_seconds, now)
        if wake_at is not None and row.max_wait_seconds is not None:
            wake_at = min(wake_at, holder.enqueued_at + timedelta(seconds=row.max_wait_seconds))
        is_due = wake_at is None or wake_at <= now
        self.admissions.request([holder.pk])  # the limits of the old values may allow another task now
        if holder.rate_key not in (None, row.rate_key):
            self.admissions.keep_starts([holder.pk])
        rows = self.db.tasks.filter(pk=holder.pk)
        rows.update(
            **{name: getattr(row, name) for name in REPLACED_COLUMNS},
            **{name: json_from(getattr(row, name)) for name in ("args", "kwargs", "options", "metadata")},
            tags=None if row.tags is None else json_from(row.tags),
            rank=now - timedelta(seconds=row.priority * self.db.options.aging),
            wake_at=None if is_due else wake_at,
            expires_at=moment(row.expires_at, row.expires_after_seconds, now),
            still_counts=False,
            attempts=0,
        )
        rows.update(status=ready_status() if is_due else Status.SCHEDULED)
        self.admissions.request([holder.pk])
        return Enqueued(holder.pk, holder.enqueued_at, Status(rows.values_list("status", flat=True)[0]), False)

    def enqueue_once(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert as enqueue() does. The answer to a used idempotency_key names its task, even if it has ended.

        A loop around the insert, because ON CONFLICT covers one unique index only. Raises DuplicateKey if the
        transaction cannot see the task. Locks: as enqueue(), in the order of these keys.
        """
        for _ in range(ONCE_TRIES):
            holders = self._seen({row.idempotency_key for row in rows})
            firsts: dict[str | UUID, NewTask] = {}
            for row in rows:
                if row.idempotency_key not in holders:
                    firsts.setdefault(row.idempotency_key or row.id, row)
            in_order = sorted(firsts.values(), key=lambda row: row.idempotency_key or "")
            try:
                with self.db.transaction():
                    inserted = self.enqueue(in_order)
            except IntegrityError:  # another session used a key; the next round finds it
                continue
            answers = {row.id: answer for row, answer in zip(in_order, inserted, strict=True)}
            holders |= {row.idempotency_key: replace(answers[row.id], created=False) for row in in_order}
            return [answers.get(row.id) or holders[row.idempotency_key] for row in rows]
        raise DuplicateKey("An idempotency key is held by a task that this transaction cannot see.")

    def _seen(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the tasks, live or ended, that have idempotency keys."""
        return self._as_holders(self.db.tasks.filter(idempotency_key__in=keys), "idempotency_key")

    def insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        now = self.db.now()
        tasks = [self._new(row, now) for row in rows]
        self.db.tasks.bulk_create([task for task in tasks if task.key is None], batch_size=ENQUEUE_BATCH)
        answers = {task.pk: enqueued_from(task) for task in tasks if task.key is None}
        keyed = sorted((task for task in tasks if task.key is not None), key=lambda task: task.key or "")
        try:
            with transaction.atomic(using=self.db.using):
                self.db.tasks.bulk_create(keyed, batch_size=ENQUEUE_BATCH)
            answers |= {task.pk: enqueued_from(task) for task in keyed}
        except IntegrityError:  # a key is taken, or two tasks have the same
            answers |= {task.pk: self._insert_keyed(task) for task in keyed}
        self.admissions.request(
            [task.pk for task in tasks if task.status == Status.BLOCKED and answers[task.pk].created]
        )
        submitted = Counter((row.queue_name, row.task_type) for row in rows if answers[row.id].created)
        self.counters.add(
            [CounterDelta(queue_name=queue, task_type=name, submitted=n) for (queue, name), n in submitted.items()]
        )
        return [answers[row.id] for row in rows]

    def _insert_keyed(self, task: Task) -> Enqueued:
        for _ in range(KEY_TRIES):
            if holder := self._holders_of({task.key}).get(task.key):
                return holder
            try:
                with transaction.atomic(using=self.db.using):
                    self.db.tasks.bulk_create([task])
            except IntegrityError:  # another session took the key; the next round finds it
                continue
            return enqueued_from(task)
        raise key_taken(task.key)

    def _holders_of(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the live tasks that hold keys."""
        return self._as_holders(self._holders(keys), "key")

    def _as_holders(self, tasks: TaskQuerySet, column: str) -> dict[str | None, Enqueued]:
        rows = tasks.values_list(column, "pk", "enqueued_at", "status")
        return {key: Enqueued(pk, at, Status(status), False) for key, pk, at, status in rows}

    def _new(self, row: NewTask, now: datetime) -> Task:
        wake_at = moment(row.wake_at, row.wake_after_seconds, now)
        is_due = wake_at is None or wake_at <= now
        return Task(
            **{name: getattr(row, name) for name in SAME_COLUMNS},
            **{name: json_from(getattr(row, name)) for name in ("args", "kwargs", "options", "metadata")},
            tags=None if row.tags is None else json_from(row.tags),
            backend=self.db.backend,
            rank=now - timedelta(seconds=row.priority * self.db.options.aging),
            status=new_status(row, is_due=is_due),
            wake_at=None if is_due else wake_at,
            expires_at=moment(row.expires_at, row.expires_after_seconds, now),
            enqueued_at=now,
        )

    # --- cancel

    def cancel(
        self,
        ids: Collection[UUID],
        *,
        tree: bool = False,
        wait: bool = True,
        may: Callable[[Task], bool] | None = None,
    ) -> CancelReport:
        """
        Cancel live tasks. Queued tasks end at once, running tasks at the next heartbeat of their executor.

        tree: cancel all live descendants, too. A descendant with an earlier request is not counted again.
        may: whether a task may be cancelled. If not, it is `not_allowed`; its descendants are checked nevertheless.
        The caller wakes `parents` after the commit.
        Locks: the rows, and the running tasks that they were to follow, in id order. Tasks are `busy` if other sessions
        have locked one of these rows, unless `wait`.
        """
        requested = set(ids)
        with self.db.transaction():
            targets = requested | self.descendants(requested) if tree else requested
            rows = self._lock_for_cancel(targets, wait=wait)
            # A commit that held a lock may have spawned children. Their ids are later, so the order of locks holds.
            while tree and (children := self.descendants(requested) - targets):
                targets |= children
                rows += self.db.lock(children, wait=wait).only(*CANCEL_COLUMNS)
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(targets, rows)
            repeated = {row.pk for row in rows if row.cancel_requested_at is not None} - requested
            denied = frozenset(row.pk for row in rows if may is not None and row.status not in FINAL and not may(row))
            ended, running, parents = self.cancel_locked([row for row in rows if row.pk not in denied])
        return CancelReport(
            cancelled=len(ended),
            requested=len(running - repeated),
            skipped=len(requested - ended - running - busy - denied),
            parents=frozenset(parents),
            busy=busy,
            not_allowed=denied,
        )

    def _lock_for_cancel(self, ids: Collection[UUID], *, wait: bool) -> list[Task]:
        """Lock tasks with the live ones that they follow. Leave out tasks of which a row is locked elsewhere."""
        successors = self.db.by_ids(ids).filter(predecessor_id__isnull=False)
        first_of = {row.pk: row.predecessor_id for row in successors.only("predecessor_id") if row.predecessor_id}
        first = set(self.db.tasks.live().filter(pk__in=first_of.values()).values_list("pk", flat=True))
        locked = {row.pk: row for row in self.db.lock({*ids, *first}, wait=wait).only(*CANCEL_COLUMNS)}
        busy = first - locked.keys()
        return [row for pk, row in locked.items() if pk in ids and first_of.get(pk) not in busy]

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        """Return the live descendants of these tasks, also below tasks that have ended."""
        live: set[UUID] = set()
        seen: set[UUID] = set()
        parents = list(ids)
        while parents:
            batch, parents = parents[:PARENTS_PER_QUERY], parents[PARENTS_PER_QUERY:]
            children = dict(self.db.tasks.filter(parent_id__in=batch).values_list("pk", "finished_at"))
            live |= {pk for pk, finished_at in children.items() if finished_at is None}
            parents += children.keys() - seen
            seen |= children.keys()
        return live

    def cancel_locked(self, rows: Iterable[Task | LockedRow]) -> tuple[set[UUID], set[UUID], set[UUID]]:
        """
        End the locked tasks that are not RUNNING. Request the cancel of the others from their executors.

        Return the ended tasks, the running ones, and the parents that got a message.
        """
        live = {row.pk: row for row in rows if row.status not in FINAL}
        running = {pk for pk, row in live.items() if row.status == Status.RUNNING}
        queued = live.keys() - running
        self.cancel_queued(queued)
        if running:
            self.db.tasks.filter(pk__in=running).update(cancel_requested_at=Coalesce("cancel_requested_at", Clock()))
        endings = [ending for pk in queued if (ending := ending_of(live[pk], Status.CANCELLED, None))]
        return queued, running, self.messages.report_ends(endings)

    def cancel_queued(self, ids: Collection[UUID]) -> None:
        """End tasks that this transaction has locked or inserted."""
        if ids:
            rows = self.db.tasks.filter(pk__in=ids)
            rows.update(
                status=Status.CANCELLED,
                cancel_requested_at=Clock(),
                finished_at=Clock(),
                wake_at=None,
                still_counts=False,
            )
            self.admissions.request(ids)
            self._forget_successors(ids)

    def _forget_successors(self, ids: Collection[UUID]) -> None:
        """Give the keys of cancelled tasks back to the running tasks that they were to follow."""
        rows = self.db.tasks.filter(pk__in=ids, predecessor_id__isnull=False).only("predecessor_id")
        if found := [row.predecessor_id for row in rows if row.predecessor_id]:
            self.db.tasks.live().filter(pk__in=found).update(successor_id=None)

    # --- requeue

    def requeue(self, ids: Collection[UUID], *, wait: bool = True) -> RequeueReport:
        """
        Put FAILED and CANCELLED tasks back READY, with all their attempts, their state and inbox.

        A task whose key a live task holds stays unchanged. Locks: the rows in id order. Rows locked by other sessions
        are `busy` unless `wait`. Waits for a concurrent insert of the same key.
        """
        with self.db.transaction():
            seen = list(self.db.lock(ids, wait=wait).only("pk", "status", "key"))
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(ids, seen)
            rows = [row for row in seen if row.status in UNSUCCESSFUL]
            requeued = self._requeue_free(self._with_free_keys(rows))
        skipped = len(set(ids) - busy) - len(rows)
        return RequeueReport(requeued=requeued, key_taken=len(rows) - requeued, skipped=skipped, busy=busy)

    def _with_free_keys(self, rows: Sequence[Task]) -> list[UUID]:
        """Return the tasks without a key, and the first task of each key that no live task holds."""
        keys = {row.key for row in rows if row.key is not None}
        taken = set(self._holders(keys).values_list("key", flat=True)) if keys else set()
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
        found = list(rows.values_list("pk", flat=True))
        self.db.tasks.filter(pk__in=found).update(successor_id=None, predecessor_id=None)
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
            history=appended(line_of(Event.REQUEUED, self.db.now())),
        )
        self.admissions.request(found)
        return count

    # --- run now, discard, delete

    def run_now(self, ids: Collection[UUID], *, wait: bool = True) -> ChangeReport:
        """
        Make SCHEDULED and SUSPENDED tasks READY, as if their time had come. Locks: the rows in id order.

        A SUSPENDED task is not told that its wait has timed out.
        """

        def change(rows: TaskQuerySet) -> int:
            scheduled = list(rows.scheduled().values_list("pk", flat=True))
            suspended = list(rows.suspended().values_list("pk", flat=True))
            self.db.tasks.filter(pk__in=scheduled).update(
                status=ready_status(),
                still_counts=Case(When(rate_key__isnull=True, then=False), default=F("still_counts")),
                rank=rank_from(Clock(), self.db.options.aging),
                wake_at=None,
            )
            self.admissions.request(scheduled)
            self.messages.wake_locked(suspended)
            return len(scheduled) + len(suspended)

        return self._change(ids, WAITING, change, wait=wait)

    def discard(self, ids: Collection[UUID], *, wait: bool = True) -> ChangeReport:
        """Make FAILED tasks CANCELLED now, so that nobody looks at them again. Locks: the rows in id order."""

        def change(rows: TaskQuerySet) -> int:
            return rows.update(status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock())

        return self._change(ids, (Status.FAILED,), change, wait=wait)

    def delete(self, ids: Collection[UUID], *, wait: bool = True) -> ChangeReport:
        """Delete ended tasks with their messages. Locks: the rows FOR UPDATE in id order."""

        def change(rows: TaskQuerySet) -> int:
            found = list(rows.values_list("pk", flat=True))
            self._delete_locked(found)
            return len(found)

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

        Executors, fallback heartbeats and the counters of minutes are deleted after a day, those of hours after 31.

        Return the number of deleted tasks. limit: per status. Does nothing while another session prunes.
        Locks: the rows FOR UPDATE, skipping locked ones: a task stays while a sender locks it.
        """
        with self.db.transaction():
            if not self._may_prune():
                return 0
            old = now_plus(-EXECUTORS_KEPT_SECONDS)
            silent = self.db.with_lock(self.db.executors.filter(heartbeat__lt=old), no_key=False)
            self.db.executors.filter(pk__in=[row.pk for row in silent.only("pk")]).delete()
            FallbackHeartbeat.objects.using(self.db.using).filter(at__lt=old).delete()
            self.counters.prune_periods(limit)
            self.admissions.prune(limit)
            kept = self.db.options.retention.items()
            count = sum(self.prune_status(status, seconds, limit) for status, seconds in kept if seconds is not None)
            if count:
                failpoint("prune.before")
        if count:
            failpoint("prune.after")
        return count

    def prune_status(self, status: str, kept_seconds: float, limit: int = 1000) -> int:
        """Delete tasks that ended with a status, and before `kept_seconds`, the oldest first. Locks: as prune()."""
        old = self.db.tasks.filter(status=status, finished_at__lte=now_plus(-kept_seconds)).order_by("finished_at")
        with self.db.transaction():
            ids = [row.pk for row in self.db.with_lock(old, no_key=False).only("pk")[:limit]]
            self._delete_locked(ids)
            return len(ids)

    def _delete_locked(self, ids: Sequence[UUID]) -> None:
        if ids:
            self.admissions.keep_starts(ids)
            self.messages.delete_of(ids)
            self.progress.delete_of(ids)
            self.db.tasks.filter(pk__in=ids)._raw_delete(self.db.using)

    def _may_prune(self) -> bool:
        """Whether no other session prunes. Without such a lock, two sessions delete different rows, or one waits."""
        return True


def enqueued_from(task: Task) -> Enqueued:
    return Enqueued(task.pk, task.enqueued_at, Status(task.status), True)


def moment(at: datetime | None, after_seconds: float | None, now: datetime) -> datetime | None:
    """Return a requested time: `at`, or so many seconds from now."""
    return at if at is not None or after_seconds is None else now + timedelta(seconds=after_seconds)


def new_status(row: NewTask, *, is_due: bool) -> Status:
    if not is_due:
        return Status.SCHEDULED
    is_limited = row.concurrency_key is not None or row.rate_key is not None or row.predecessor_id is not None
    return Status.BLOCKED if is_limited else Status.READY


def key_taken(key: str | None) -> DuplicateKey:
    return DuplicateKey(f"The key {key!r} is held by a task that this transaction cannot see.")

"""Every verb of the queue in the ORM, correct on any database that Django supports."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction
from django.db.models import Case, Exists, F, Min, OuterRef, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Coalesce

from jobqueue.conf import Options
from jobqueue.engine.clock import Clock, from_now, rank_from, read_clock
from jobqueue.exceptions import ConsumedTwice, ExecutorLost, KeyTaken, TaskFinished, TaskNotFound
from jobqueue.models import Executor, InboxMessage, Queue, Task
from jobqueue.outcome import (
    FINAL,
    CancelReport,
    Claimed,
    Committed,
    Demand,
    Effects,
    Enqueued,
    Held,
    NewMessage,
    NewTask,
    Outcome,
    RequeueReport,
    Rescued,
    Sign,
    Status,
    Woken,
)

logger = logging.getLogger(__name__)

ERRORS_KEPT = 20  # newest, per task
WORKERS_KEPT = 100  # newest, per task
SUSPECT_LOSSES = 2  # a task that lost this many executors runs alone in its process
ENQUEUE_BATCH = 1000  # rows per INSERT

RAW = ("args", "kwargs", "inner_state", "options", "metadata", "errors", "worker_ids")  # read as text, decoded per task


class Engine:
    """
    The queue of one backend on one database.

    All verbs take the database's clock. Those that lock several rows lock them in id order first
    and look afterwards, so that none deadlocks with another (tests/engine/test_races.py).
    """

    def __init__(self, alias: str, options: Options) -> None:
        self.alias = alias
        self.options = options
        self.database = options.database

    # --- the ground every verb stands on

    @property
    def tasks(self) -> QuerySet[Task]:
        return Task.objects.using(self.database).filter(backend=self.alias)

    @property
    def messages(self) -> QuerySet[InboxMessage]:
        return InboxMessage.objects.using(self.database)

    @property
    def executors(self) -> QuerySet[Executor]:
        return Executor.objects.using(self.database).filter(backend=self.alias)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open the verb's own transaction, or join the caller's."""
        with transaction.atomic(using=self.database, savepoint=False):
            yield

    def lock(self, ids: Iterable[UUID], *, wait: bool = False) -> QuerySet[Task]:
        """
        Select tasks by id, locking them in id order; rows locked elsewhere are left out unless `wait`.

        Locks: FOR NO KEY UPDATE, which a message being sent (FOR KEY SHARE) does not collide with.
        """
        rows = self.tasks.filter(pk__in=list(ids)).order_by("pk")
        features = connections[self.database].features
        if not features.has_select_for_update:
            return rows
        return rows.select_for_update(
            no_key=features.has_select_for_no_key_update,
            skip_locked=not wait and features.has_select_for_update_skip_locked,
            of=("self",) if features.has_select_for_update_of else (),
        )

    def now(self) -> datetime:
        """Read the database's clock."""
        return read_clock(self.database)

    # --- enqueue

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert tasks in the caller's transaction; answers come in the order of `rows`.

        A row whose key a live task holds is not inserted: the answer names that task.
        """
        answers: list[Enqueued] = []
        with self.transaction():
            for row in rows:
                answers.append(self._enqueue_one(row, self.now()))
        return answers

    def _enqueue_one(self, row: NewTask, now: datetime) -> Enqueued:
        wake_at = row.wake_at
        if wake_at is None and row.wake_after_seconds is not None:
            wake_at = now + timedelta(seconds=row.wake_after_seconds)
        expires_at = row.expires_at
        if expires_at is None and row.expires_after_seconds is not None:
            expires_at = now + timedelta(seconds=row.expires_after_seconds)
        is_due = wake_at is None or wake_at <= now
        status = Status.READY if is_due else Status.SCHEDULED
        task = Task(
            id=row.id,
            backend=self.alias,
            queue_name=row.queue_name,
            task_type=row.task_type,
            priority=row.priority,
            rank=now - timedelta(seconds=row.priority * self.options.aging),
            args=json.loads(row.args),
            kwargs=json.loads(row.kwargs),
            options=json.loads(row.options),
            metadata=json.loads(row.metadata),
            key=row.key,
            parent_id=row.parent_id,
            status=status,
            wake_at=None if is_due else wake_at,
            expires_at=expires_at,
            max_attempts=row.max_attempts,
            enqueued_at=now,
        )
        if row.key is None:
            self.tasks.bulk_create([task])
            return Enqueued(row.id, now, status, True)
        for _ in range(3):
            holder = self.tasks.live().filter(key=row.key).values_list("pk", "enqueued_at", "status").first()
            if holder is not None:
                return Enqueued(holder[0], holder[1], Status(holder[2]), False)
            try:
                with transaction.atomic(using=self.database):
                    self.tasks.bulk_create([task])
            except IntegrityError:  # somebody else took the key in between; the next look finds it
                continue
            return Enqueued(row.id, now, status, True)
        raise KeyTaken(f"The key {row.key!r} is held by a task that this transaction cannot see.")

    # --- claim

    def claim(self, demand: Demand) -> list[Claimed]:
        """
        Hand READY tasks to an executor, at most `limit`, best rank first.

        Paused queues are left out. Each task carries the claim_number that its commit must present.
        """
        if demand.limit <= 0 or not demand.queues:
            return []
        losses = Q(lost_count__gte=SUSPECT_LOSSES) if demand.suspects else Q(lost_count__lt=SUSPECT_LOSSES)
        candidates = self.tasks.ready().filter(losses, queue_name__in=self._unpaused(demand.queues))
        if demand.only is not None:
            candidates = candidates.filter(task_type__in=demand.only)
        if demand.but is not None:
            candidates = candidates.exclude(task_type__in=demand.but)
        found = candidates.order_by("rank", "pk").values_list("pk", "claim_number")[: demand.limit]
        with self.transaction():
            held = [pk for pk, number in found if self._claim_one(pk, number, demand.executor_id)]
            return self._read_claimed(held)

    def _unpaused(self, queues: Sequence[str]) -> list[str]:
        paused = Queue.objects.using(self.database).filter(
            Q(resume_at__isnull=True) | Q(resume_at__gt=Clock()), backend=self.alias, paused_at__isnull=False
        )
        names = set(paused.values_list("name", flat=True))
        return [name for name in queues if name not in names]

    def _claim_one(self, pk: UUID, number: int, executor_id: UUID) -> bool:
        rows = self.tasks.ready().filter(pk=pk, claim_number=number)
        return bool(
            rows.update(
                status=Status.RUNNING,
                claim_number=F("claim_number") + 1,
                executor_id=executor_id,
                heartbeat=Clock(),
                started_at=Coalesce("started_at", Clock()),
                last_attempted_at=Clock(),
            )
        )

    def _read_claimed(self, ids: Sequence[UUID]) -> list[Claimed]:
        texts = {f"{name}_text": Cast(name, TextField()) for name in RAW}
        rows = self.tasks.filter(pk__in=ids).annotate(**texts).defer(*RAW).order_by("rank", "pk")
        now = self.now()
        return [
            Claimed(
                id=row.pk,
                task_type=row.task_type,
                queue_name=row.queue_name,
                priority=row.priority,
                **{name: getattr(row, f"{name}_text") for name in RAW},
                parent_id=row.parent_id,
                key=row.key,
                claim_number=row.claim_number,
                attempts=row.attempts,
                max_attempts=row.max_attempts,
                polls=row.polls,
                lost_count=row.lost_count,
                rank=row.rank,
                enqueued_at=row.enqueued_at,
                started_at=row.started_at,
                claimed_at=row.heartbeat or now,
                wait_seconds=max(0.0, (now - row.rank).total_seconds() - row.priority * self.options.aging),
                is_expired=row.expires_at is not None and row.expires_at <= now and row.polls == 0,
            )
            for row in rows
        ]

    def queues_in_use(self) -> list[str]:
        """Name the queues that hold READY tasks, for an executor that serves every queue."""
        return sorted(set(self.tasks.ready().order_by("queue_name").values_list("queue_name", flat=True).distinct()))

    def has_suspects(self, queues: Sequence[str]) -> bool:
        """Whether a READY task waits that lost executors before, and so has to run alone."""
        return self.tasks.ready().filter(queue_name__in=queues, lost_count__gte=SUSPECT_LOSSES).exists()

    def is_drained(self, queues: Sequence[str] | None, within_seconds: float) -> bool:
        """Whether nothing of these queues (None: of any) is ready, running, or due so soon."""
        busy = Q(status__in=[Status.READY, Status.RUNNING]) | Q(
            status__in=[Status.SCHEDULED, Status.SUSPENDED], wake_at__lte=from_now(within_seconds)
        )
        rows = self.tasks.filter(busy)
        return not (rows if queues is None else rows.filter(queue_name__in=queues)).exists()

    # --- wake

    def wake_due(self, limit: int = 1000) -> Woken:
        """
        Make SCHEDULED and sleeping SUSPENDED tasks READY whose moment has come.

        They rank by the moment they asked for. Locks: the rows, skipping locked ones.
        """
        alarms = self.tasks.filter(status__in=[Status.SCHEDULED, Status.SUSPENDED], wake_at__isnull=False)
        with self.transaction():
            due = list(alarms.filter(wake_at__lte=Clock()).order_by("wake_at").values_list("pk", flat=True)[:limit])
            locked = [row.pk for row in self.lock(due).only("pk")] if due else []
            count = alarms.filter(pk__in=locked, wake_at__lte=Clock()).update(
                status=Status.READY, rank=rank_from(F("wake_at"), self.options.aging), wake_at=None
            )
        following = alarms.aggregate(at=Min("wake_at"))["at"]
        seconds = None if following is None else (following - self.now()).total_seconds()
        return Woken(count=count, next_seconds=seconds)

    def wake(self, ids: Iterable[UUID]) -> int:
        """
        Make SUSPENDED tasks READY, after the commit that sent them mail.

        Locks first and decides afterwards: one that is RUNNING in an older snapshot is then seen as
        its commit left it. Returns how many woke.
        """
        with self.transaction():
            return self._wake_locked([row.pk for row in self.lock(ids, wait=True).only("pk")])

    def _wake_locked(self, ids: Sequence[UUID]) -> int:
        return self.tasks.suspended().filter(pk__in=ids).update(
            status=Status.READY, rank=rank_from(Clock(), self.options.aging), wake_at=None
        )

    def sweep(self, limit: int = 1000) -> int:
        """Wake SUSPENDED tasks that have unread mail and no alarm: the net below a lost wake-up."""
        mail = self.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        stuck = self.tasks.suspended().filter(Exists(mail), wake_at__isnull=True)
        ids = list(stuck.order_by("pk").values_list("pk", flat=True)[:limit])
        if not ids:
            return 0
        with self.transaction():
            return self._wake_locked([row.pk for row in self.lock(ids).only("pk")])

    # --- heartbeat

    def heartbeat(self, sign: Sign) -> list[Held]:
        """
        Write the executor's sign of life and see what it holds.

        Locks: the executor's own row, until the statement ends. Task rows are only read, so that a
        sender's long transaction cannot keep a healthy executor from beating.
        """
        seen = {"heartbeat": Clock(), "state": sign.state}
        if not self.executors.filter(pk=sign.executor_id).update(**seen):
            self._write_executor(sign)
        rows = self.tasks.running().filter(executor_id=sign.executor_id)
        return [
            Held(id=pk, claim_number=number, is_cancel_requested=requested is not None)
            for pk, number, requested in rows.values_list("pk", "claim_number", "cancel_requested_at")
        ]

    def _write_executor(self, sign: Sign) -> None:
        now = self.now()
        row = Executor(
            id=sign.executor_id,
            backend=self.alias,
            name=sign.name,
            host=sign.host,
            pid=sign.pid,
            versions=dict(sign.versions),
            queues=list(sign.queues),
            slots=sign.slots,
            started_at=now,
            heartbeat=now,
            state=sign.state,
        )
        self.executors.bulk_create([row], ignore_conflicts=True)

    # --- commit

    def commit(self, outcomes: Sequence[Outcome], *, wait: bool = False) -> Committed:
        """
        Perform what polls led to, all that can be in one transaction.

        Three rules: lock every row first, in id order; look into inboxes only in later statements;
        present the claim_number. Rows that somebody else holds are left `unknown`, or waited for
        with `wait`. When the database refuses a value, each outcome is tried alone, so that only the
        guilty one is `refused`.
        """
        return self.each_alone_if_refused(lambda batch: self._commit(batch, wait=wait), outcomes)

    def each_alone_if_refused(
        self, perform: Callable[[Sequence[Outcome]], Committed], outcomes: Sequence[Outcome]
    ) -> Committed:
        """Commit a batch; when its values are refused, commit its members one by one."""
        if not outcomes:
            return Committed()
        try:
            return perform(outcomes)
        except (DatabaseError, TaskFinished, TaskNotFound, ConsumedTwice) as error:
            if not is_refusal(error):
                raise
            if len(outcomes) == 1:
                return Committed(refused={outcomes[0].task_id: error})
        return merge([self.each_alone_if_refused(perform, [outcome]) for outcome in outcomes])

    def _commit(self, outcomes: Sequence[Outcome], *, wait: bool) -> Committed:
        with self.transaction():
            receivers = {message.task_id for outcome in outcomes for message in outcome.effects.send}
            receivers |= {outcome.parent_id for outcome in outcomes if outcome.parent_id is not None}
            own = {outcome.task_id for outcome in outcomes}
            locked = {row.pk: row for row in self.lock(own | receivers, wait=wait).defer(*RAW[:5])}
            gone = self._gone(own - locked.keys())
            lost, done, wake = set(gone), {}, set[UUID]()
            accepted: list[tuple[Outcome, Task]] = []
            for outcome in outcomes:
                row = locked.get(outcome.task_id)
                if row is None:
                    continue
                if row.status != Status.RUNNING or row.claim_number != outcome.claim_number:
                    lost.add(outcome.task_id)
                    continue
                accepted.append((outcome, row))
            for outcome, row in accepted:
                entering = entered(outcome, cancel_requested=row.cancel_requested_at is not None)
                done[row.pk] = entering
                wake |= self._perform(outcome.effects, row.pk)
                wake |= self._tell_parent(row, entering, outcome)
            for outcome, row in accepted:
                done[row.pk] = self._write(outcome, row, done[row.pk])
            wake -= done.keys()
            self._wake_locked([pk for pk in wake if pk in locked])
            return Committed(
                done=done,
                lost=frozenset(lost),
                unknown=frozenset(own - locked.keys() - gone),
                wake=frozenset(wake - locked.keys()),
            )

    def _gone(self, ids: Iterable[UUID]) -> set[UUID]:
        """Of rows that the lock did not return: those that are not there at all."""
        asked = set(ids)
        return asked - set(self.tasks.filter(pk__in=asked).values_list("pk", flat=True)) if asked else asked

    def _perform(self, effects: Effects, task_id: UUID) -> set[UUID]:
        """Consume, spawn and send for one task; returns the receivers of its messages."""
        if effects.consumed:
            read = self.messages.filter(pk__in=effects.consumed, task_id=task_id, consumed_at__isnull=True)
            count = read.filter(dedupe_key__isnull=False).update(consumed_at=Clock(), body=None)
            count += read.filter(dedupe_key__isnull=True)._raw_delete(self.database)
            if count != len(set(effects.consumed)):
                raise ConsumedTwice
        if effects.spawn:
            self.enqueue([replace(child, parent_id=task_id) for child in effects.spawn])
        if effects.send:
            self.send(effects.send)
        return {message.task_id for message in effects.send}

    def _tell_parent(self, row: Task, entering: Status, outcome: Outcome) -> set[UUID]:
        """Send a child's end to its parent, once; returns the parent if it lives."""
        if entering not in FINAL or row.parent_id is None or row.reported_at is not None:
            return set()
        body = outcome.return_value if entering is Status.SUCCESSFUL else outcome.error
        return self._report({row.pk: (row.parent_id, entering, body)})

    def _report(self, ended: Mapping[UUID, tuple[UUID, Status, str | None]]) -> set[UUID]:
        """Write one message per ended child to its parent; a parent that has ended is told nothing."""
        parents = {parent for parent, _, _ in ended.values()}
        living = set(self.tasks.live().filter(pk__in=parents).values_list("pk", flat=True))
        now = self.now()
        self.messages.bulk_create(
            InboxMessage(
                task_id=parent, sender_id=child, eof=status, sent_at=now, body=None if body is None else json.loads(body)
            )
            for child, (parent, status, body) in ended.items()
            if parent in living
        )
        self.tasks.filter(pk__in=list(ended)).update(reported_at=Clock())
        if parents - living:
            logger.info("message.dropped parents have ended", extra={"parents": [str(pk) for pk in parents - living]})
        return living

    def _write(self, outcome: Outcome, row: Task, entering: Status) -> Status:
        """Write the outcome into its own row, which this transaction has locked."""
        changes: dict[str, Any] = {"attempts": outcome.attempts, "heartbeat": None, "executor_id": None, "wake_at": None}
        if entering is Status.SUSPENDED and self._has_mail(row.pk):
            entering = Status.READY
        if entering in (Status.SCHEDULED, Status.SUSPENDED) and outcome.wake_after_seconds is not None:
            changes["wake_at"] = from_now(outcome.wake_after_seconds)
        if entering is Status.READY and not outcome.keeps_rank:
            changes["rank"] = rank_from(Clock(), self.options.aging)
        if entering in FINAL:
            changes["finished_at"] = Clock()
        if outcome.is_good_poll:
            changes["polls"] = F("polls") + 1
        if outcome.worker_id is not None:
            changes["worker_ids"] = [*row.worker_ids, outcome.worker_id][-WORKERS_KEPT:]
        if outcome.error is not None:
            changes["errors"] = [*row.errors, json.loads(outcome.error)][-ERRORS_KEPT:]
        for name in ("return_value", "inner_state", "metadata"):
            if (text := getattr(outcome, name)) is not None:
                changes[name] = Value(json.loads(text), Task._meta.get_field(name))
        self.tasks.running().filter(pk=row.pk, claim_number=outcome.claim_number).update(status=entering, **changes)
        return entering

    def _has_mail(self, task_id: UUID) -> bool:
        return self.messages.filter(task_id=task_id, consumed_at__isnull=True).exists()

    def release(self, claims: Iterable[Claimed]) -> Committed:
        """Hand tasks back READY at their old place, no attempt counted (CANCELLED where that was asked for)."""
        return self.commit([released(claimed) for claimed in claims])

    # --- rescue

    def rescue(self, limit: int = 100) -> list[Rescued]:
        """
        Take RUNNING tasks from executors that stopped beating.

        Both the executor's heartbeat and the task's own (its claim) must be older than the timeout.
        They become READY at their old place with one loss more, or FAILED at the limit of losses.
        An executor without a row gets one, and a timeout to beat. Locks: the rows, skipping locked ones.
        """
        self._write_missing_executors()
        silence = from_now(-self.options.heartbeat_timeout)
        silent = self.executors.filter(heartbeat__lt=silence)
        held = self.tasks.running().filter(heartbeat__lt=silence, executor_id__in=silent.values("pk"))
        ids = list(held.order_by("pk").values_list("pk", flat=True)[:limit])
        if not ids:
            return []
        with self.transaction():
            # The filter is applied to the locked version of the row: one claimed again meanwhile is left alone.
            rows = list(self.lock(ids).filter(status=Status.RUNNING, heartbeat__lt=silence).defer(*RAW[:5]))
            beats = dict(self.executors.filter(pk__in={row.executor_id for row in rows}).values_list("pk", "heartbeat"))
            now = self.now()
            taken = [self._take(row, (now - beats.get(row.executor_id, now)).total_seconds()) for row in rows]
            errors = {row.pk: json.dumps(row.errors[-1]) for row in rows if row.status == Status.FAILED}
            parents = {
                row.pk: (row.parent_id, Status(row.status), errors.get(row.pk))
                for row in rows
                if row.parent_id is not None and row.reported_at is None and row.status in FINAL
            }
            told = self._report(parents) if parents else set()
        if told:
            self.wake(told)
        return taken

    def _take(self, row: Task, silent_seconds: float) -> Rescued:
        executor_id, row.lost_count = row.executor_id, row.lost_count + 1
        changes: dict[str, Any] = {"lost_count": row.lost_count, "executor_id": None, "heartbeat": None}
        if row.cancel_requested_at is not None:
            row.status, changes["finished_at"] = Status.CANCELLED, Clock()
        elif row.lost_count >= self.options.max_losses:
            row.status, changes["finished_at"] = Status.FAILED, Clock()
        else:
            row.status = Status.READY
        row.errors = [*row.errors, lost_error(row, self.now())][-ERRORS_KEPT:]
        changes |= {"status": row.status, "errors": row.errors}
        changes["worker_ids"] = [*row.worker_ids, str(executor_id)][-WORKERS_KEPT:]
        self.tasks.running().filter(pk=row.pk, claim_number=row.claim_number).update(**changes)
        return Rescued(
            id=row.pk,
            task_type=row.task_type,
            status=Status(row.status),
            lost_count=row.lost_count,
            executor_id=executor_id,
            silent_seconds=silent_seconds,
        )

    def release_strays(self, executor_id: UUID, known: Sequence[UUID]) -> int:
        """
        Hand back what an executor holds in the database beyond what it knows of, at its old place.

        A claim whose answer was lost leaves such rows: they would stay RUNNING as long as it beats.
        """
        held = self.tasks.running().filter(executor_id=executor_id).exclude(pk__in=known)
        ids = list(held.order_by("pk").values_list("pk", flat=True))
        if not ids:
            return 0
        cancelled = Q(cancel_requested_at__isnull=False)
        with self.transaction():
            rows = self.lock(ids).filter(status=Status.RUNNING, executor_id=executor_id).only("pk")
            return self.tasks.running().filter(pk__in=[row.pk for row in rows]).update(
                status=Case(When(cancelled, then=Value(Status.CANCELLED.value)), default=Value(Status.READY.value)),
                finished_at=Case(When(cancelled, then=Clock()), default=None),
                executor_id=None,
                heartbeat=None,
            )

    def say_goodbye(self, executor_id: UUID) -> None:
        """Mark an executor as stopped."""
        self.executors.filter(pk=executor_id).update(state=Executor.State.STOPPED, heartbeat=Clock())

    def _write_missing_executors(self) -> None:
        known = Executor.objects.using(self.database).filter(pk=OuterRef("executor_id"))
        orphans = self.tasks.running().filter(~Exists(known), executor_id__isnull=False)
        for executor_id in set(orphans.values_list("executor_id", flat=True)):
            unknown = Sign(executor_id=executor_id, name="unknown", host="", pid=0, versions={}, queues=[], slots=0)
            self._write_executor(unknown)

    # --- send

    def send(self, messages: Sequence[NewMessage]) -> list[int]:
        """
        Insert messages in the caller's transaction; the receivers are woken after its commit.

        Raises TaskNotFound or TaskFinished, then nothing is inserted. A repeated dedupe_key inserts nothing.
        """
        with self.transaction():
            receivers = {message.task_id for message in messages}
            found = dict(self.tasks.filter(pk__in=receivers).values_list("pk", "finished_at"))
            for receiver in receivers:
                if receiver not in found:
                    raise TaskNotFound(f"There is no task {receiver} to send to.")
                if found[receiver] is not None:
                    raise TaskFinished(f"Task {receiver} has ended and takes no messages.")
            now = self.now()
            return [pk for message in messages if (pk := self._insert(message, now)) is not None]

    def _insert(self, message: NewMessage, now: datetime) -> int | None:
        repeated = message.dedupe_key is not None and self.messages.filter(
            task_id=message.task_id, dedupe_key=message.dedupe_key
        )
        if repeated and repeated.exists():
            return None
        row = InboxMessage(
            task_id=message.task_id,
            sender_id=message.sender_id,
            body=json.loads(message.body),
            eof=message.eof,
            dedupe_key=message.dedupe_key,
            sent_at=now,
        )
        row.save(using=self.database, force_insert=True)
        return row.pk

    # --- by hand

    def cancel(self, ids: Sequence[UUID]) -> CancelReport:
        """
        Cancel live tasks: queued ones end at once, running ones are told at the next heartbeat.

        Locks: the rows in id order, waiting for commits in flight. `parents` are to be woken after
        the commit.
        """
        with self.transaction():
            rows = {row.pk: row for row in self.lock(ids, wait=True).only("pk", "status", "parent_id", "reported_at")}
            running = [pk for pk, row in rows.items() if row.status == Status.RUNNING]
            queued = [pk for pk, row in rows.items() if row.status not in (Status.RUNNING, *FINAL)]
            cancelled = self.tasks.live().filter(pk__in=queued).exclude(status=Status.RUNNING).update(
                status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock(), wake_at=None
            )
            requested = self.tasks.running().filter(pk__in=running).update(
                cancel_requested_at=Coalesce("cancel_requested_at", Clock())
            )
            parents = {
                pk: (parent, Status.CANCELLED, None)
                for pk in queued
                if (parent := rows[pk].parent_id) is not None and rows[pk].reported_at is None
            }
            told = self._report(parents) if parents else set()
        return CancelReport(
            cancelled=cancelled,
            requested=requested,
            skipped=len(set(ids)) - cancelled - requested,
            parents=frozenset(told),
        )

    def requeue(self, ids: Sequence[UUID]) -> RequeueReport:
        """
        Put FAILED and CANCELLED tasks back READY, with all their attempts, their state and inbox.

        A task whose key a live task holds stays as it is. Locks: the rows in id order.
        """
        with self.transaction():
            ended = [Status.FAILED, Status.CANCELLED]
            rows = [row for row in self.lock(ids, wait=True).only("pk", "status", "key") if row.status in ended]
            keys = [row.key for row in rows if row.key is not None]
            taken = set(self.tasks.live().filter(key__in=keys).values_list("key", flat=True)) if keys else set()
            free: list[UUID] = []
            for row in rows:
                if row.key is None or row.key not in taken:
                    free.append(row.pk)
                    taken |= {row.key} - {None}
            requeued = self.tasks.filter(pk__in=free, status__in=ended).update(
                status=Status.READY,
                rank=rank_from(Clock(), self.options.aging),
                attempts=0,
                lost_count=0,
                wake_at=None,
                expires_at=None,
                cancel_requested_at=None,
                finished_at=None,
                return_value=None,
            )
        return RequeueReport(requeued=requeued, key_taken=len(rows) - len(free), skipped=len(set(ids)) - len(rows))

    # --- prune

    def prune(self, limit: int = 1000) -> int:
        """
        Delete ended tasks older than RETENTION, messages first, and executors silent for a day.

        Locks: the rows FOR UPDATE, skipping locked ones. Returns how many tasks went.
        """
        self.executors.filter(heartbeat__lt=from_now(-86_400)).delete()
        return sum(
            self._prune(status, kept, limit) for status, kept in self.options.retention.items() if kept is not None
        )

    def _prune(self, status: str, kept_seconds: float, limit: int) -> int:
        old = self.tasks.filter(status=status, finished_at__isnull=False, finished_at__lte=from_now(-kept_seconds))
        with self.transaction():
            features = connections[self.database].features
            if features.has_select_for_update:
                old = old.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
            ids = [row.pk for row in old.order_by("finished_at").only("pk")[:limit]]
            if ids:
                self.messages.filter(task_id__in=ids)._raw_delete(self.database)
                self.tasks.filter(pk__in=ids)._raw_delete(self.database)
        return len(ids)

    # --- pulse

    def pulse(self, outcomes: Sequence[Outcome], demand: Demand) -> tuple[Committed, list[Claimed]]:
        """Commit what has finished and claim what fits, in as few round trips as the rules allow."""
        return self.commit(outcomes), self.claim(demand)

    def notify(self, queues: Iterable[str]) -> None:
        """Hint to waiting executors that these queues have work; does nothing where the database cannot."""


def entered(outcome: Outcome, *, cancel_requested: bool) -> Status:
    """Give the state an outcome leads to; a cancelled task is not tried, polled or woken again."""
    return Status.CANCELLED if cancel_requested and outcome.status not in FINAL else outcome.status


def is_refusal(error: Exception) -> bool:
    """Whether the values are to blame; anything else is the database's trouble, and is tried again."""
    if isinstance(error, (DataError, IntegrityError, TaskFinished, TaskNotFound, ConsumedTwice)):
        return True
    # Class 54, program limit exceeded (a jsonb too large, say), arrives as an OperationalError.
    return str(getattr(error.__cause__, "sqlstate", "") or "").startswith("54")


def released(claimed: Claimed) -> Outcome:
    """Make the outcome that hands a claimed task back as it was."""
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        status=Status.READY,
        attempts=claimed.attempts,
        parent_id=claimed.parent_id,
        keeps_rank=True,
    )


def lost_error(row: Task, now: datetime) -> dict[str, Any]:
    """Make the entry of `errors` for a lost executor."""
    return {
        "attempt": row.attempts + 1,
        "at": now.isoformat(),
        "executor": str(row.executor_id),
        "exception_class_path": f"{ExecutorLost.__module__}.{ExecutorLost.__qualname__}",
        "message": f"The executor stopped beating while it ran this task (loss {row.lost_count}).",
        "traceback": "",
    }


def merge(parts: Iterable[Committed]) -> Committed:
    """Join the answers of several commits."""
    whole = list(parts)
    return Committed(
        done={pk: status for part in whole for pk, status in part.done.items()},
        lost=frozenset().union(*(part.lost for part in whole)),
        unknown=frozenset().union(*(part.unknown for part in whole)),
        refused={pk: error for part in whole for pk, error in part.refused.items()},
        wake=frozenset().union(*(part.wake for part in whole)),
    )

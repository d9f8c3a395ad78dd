"""Deliberately broken engines. Each is wrong in one plausible way, and a race or the simulation must detect it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connections
from django.db.models import Exists, F, OuterRef
from msgspec import structs

from jobqueue.engine.claim import is_held
from jobqueue.engine.database import RAW, with_texts
from jobqueue.engine.messages import Messages, make_ending
from jobqueue.engine.postgres.claim import PostgresClaims
from jobqueue.engine.postgres.commit import PostgresCommits
from jobqueue.engine.postgres.connection import PostgresDatabase, statement
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.engine.postgres.executors import PostgresExecutors
from jobqueue.engine.postgres.inbox import PostgresInbox
from jobqueue.engine.postgres.inserts import PostgresEnqueues, PostgresInserts
from jobqueue.engine.postgres.queues import PostgresQueues
from jobqueue.engine.postgres.tasks import PostgresTasks
from jobqueue.engine.tasks import LockedRow
from jobqueue.models import Heartbeat, Task, TaskQuerySet
from jobqueue.models.clock import Clock, clock_to_compare, rank_from
from jobqueue.values.records import (
    ClaimedBatch,
    ClaimRequest,
    CommitResult,
    Enqueued,
    ExecutorInfo,
    NewMessage,
    NewTask,
    Outcome,
    OwnedTask,
    Rescued,
)
from jobqueue.values.states import Status


class CommitInProgress(threading.local):
    """What this thread is committing, for the broken parts of an engine."""

    descendants: set[UUID] | None = None
    outcomes: Sequence[Outcome] = ()
    with_messages: Collection[UUID] = ()


in_progress = CommitInProgress()


class RecordedCommits(PostgresCommits):
    """Records the outcomes that it commits."""

    def perform(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
        in_progress.outcomes, in_progress.descendants = outcomes, None
        return super().perform(outcomes, holder=holder, wait=wait)


class RewrittenDatabase(PostgresDatabase):
    """Runs one SQL statement with some words replaced."""

    name = ""
    words = ("", "")

    def query_prepared(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.rewritten(parameters)[1] if name == self.name else super().query_prepared(name, **parameters)

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.rewritten(parameters)[1] if name == self.name else super().query(name, **parameters)

    def execute_prepared(self, name: str, /, **parameters: Any) -> None:
        if name == self.name:
            self.rewritten(parameters)
        else:
            super().execute_prepared(name, **parameters)

    def execute(self, name: str, /, **parameters: Any) -> int:
        return self.rewritten(parameters)[0] if name == self.name else super().execute(name, **parameters)

    def rewritten(self, parameters: dict[str, Any]) -> tuple[int, list[tuple[Any, ...]]]:
        sql = statement(self.name)
        assert self.words[0] in sql
        with connections[self.using].cursor() as cursor:
            cursor.execute(sql.replace(*self.words), self.common | parameters)
            return int(cursor.rowcount), list(cursor.fetchall()) if cursor.description else []


class ReadsInboxWhileLocking(PostgresEngine):
    """Reads the inbox in the locking statement. Its snapshot is older than the lock."""

    class commits_class(RecordedCommits):
        def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, Any]:
            unread = self.db.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
            rows = {
                row.pk: row for row in self.db.lock(ids, wait=wait).annotate(has_messages=Exists(unread)).defer(*RAW)
            }
            in_progress.with_messages = {pk for pk, row in rows.items() if getattr(row, "has_messages", False)}
            return rows

    class messages_class(Messages):
        def with_more_unread(self, left: Mapping[UUID, int]) -> set[UUID]:
            return set(left) & set(in_progress.with_messages)


class NeverChecksInbox(PostgresEngine):
    """Suspends without a check of the inbox, and leaves the wake to the senders."""

    class messages_class(Messages):
        def with_more_unread(self, left: Mapping[UUID, int]) -> set[UUID]:
            return set()


class WakesWithoutLocking(PostgresEngine):
    """Skips a task that is RUNNING in its snapshot, although an open commit suspends it."""

    class messages_class(Messages):
        def wake(self, ids: Iterable[UUID]) -> int:
            suspended = self.db.tasks.suspended().filter(pk__in=list(ids))
            return suspended.update(status=Status.READY, rank=rank_from(Clock(), self.db.options.aging), wake_at=None)


class OmitsWakes(PostgresEngine):
    """Wakes the receivers that it could lock, and omits those locked by other transactions."""

    class commits_class(PostgresCommits):
        def perform(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
            return replace(super().perform(outcomes, holder=holder, wait=wait), wake=frozenset())


class IgnoresClaimNumber(PostgresEngine):
    """Accepts an outcome for any RUNNING task, with any claim number."""

    class database_class(RewrittenDatabase):
        name, words = "commit", (" AND locked.claim_number = given.claim_number", "")

    class commits_class(RecordedCommits):
        def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
            rows = super()._lock_for_commit(ids, wait=wait)
            for outcome in in_progress.outcomes:
                if outcome.task_id in rows:
                    rows[outcome.task_id].claim_number = outcome.claim_number
            return rows


class IgnoresClaimNumberOfFunctions(PostgresEngine):
    """Accepts the success of a function for any RUNNING task, with any claim number."""

    class database_class(RewrittenDatabase):
        name, words = "commit_successes", (" AND locked.claim_number = given.claim_number", "")


class ReportsBeforeClaimCheck(PostgresEngine):
    """Reports a child's end to its parent before it checks the claim."""

    class commits_class(RecordedCommits):
        def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
            rows = super()._lock_for_commit(ids, wait=wait)
            for outcome in in_progress.outcomes:
                row = rows.get(outcome.task_id)
                if row is not None and not is_held(row, outcome.claim_number, None):
                    end = make_ending(replace(row, parent_notified_at=None), outcome.status, outcome.return_value)
                    self.messages.report_ends([end] if end is not None else [])
            return rows


class ConsumesUpToHighestId(PostgresEngine):
    """Assumes that messages are committed in the order of their ids."""

    class commits_class(PostgresCommits):
        def _consume(self, outcomes: Sequence[Outcome]) -> None:
            for outcome in outcomes:
                if outcome.effects.consumed:
                    last = max(outcome.effects.consumed)
                    self.db.messages.filter(task_id=outcome.task_id, pk__lte=last)._raw_delete(self.db.using)


class WaitsForReceivers(PostgresEngine):
    """Waits for locks on receivers while it holds the locks of its own tasks."""

    class commits_class(PostgresCommits):
        def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
            return super()._lock_for_commit(ids, wait=True)


class ClaimsWithoutLocking(PostgresEngine):
    """Reads READY tasks and then claims them without a lock."""

    class claims_class(PostgresClaims):
        def _take_best(self, request: ClaimRequest) -> ClaimedBatch:
            ready = self.db.tasks.ready().filter(queue_name__in=request.queues).order_by("rank", "pk")
            best = list(ready.values_list("pk", "claim_number")[: request.limit])
            for pk, number in best:
                self.db.tasks.filter(pk=pk).update(
                    status=Status.RUNNING, claim_number=number + 1, executor_id=request.executor_id, claimed_at=Clock()
                )
            return ClaimedBatch(self.read_claimed([pk for pk, _ in best]))


class CancelsWithoutLocking(PostgresEngine):
    """Decides from an unlocked read."""

    class database_class(PostgresDatabase):
        def lock(self, ids: Iterable[UUID], *, wait: bool = False) -> TaskQuerySet:
            return self.tasks.filter(pk__in=list(ids)).order_by("pk") if wait else super().lock(ids)


class ReadsDescendantsOnce(PostgresEngine):
    """Reads the descendants before it locks their parents, and misses children spawned since."""

    class tasks_class(PostgresTasks):
        def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
            if in_progress.descendants is None:
                in_progress.descendants = super().descendants(ids)
            return set(in_progress.descendants)

    commits_class = RecordedCommits


class PrunesWithoutLocking(PostgresEngine):
    """Deletes tasks that had finished before its lock, without a second check."""

    class tasks_class(PostgresTasks):
        def prune_status(self, status: str, kept_seconds: float, limit: int = 1000) -> int:
            ids = list(self.db.tasks.filter(status=status).values_list("pk", flat=True)[:limit])
            self.messages.inbox.delete_of(ids)
            self.db.tasks.filter(pk__in=ids)._raw_delete(self.db.using)
            return len(ids)


class IgnoresDedupeKeys(PostgresEngine):
    """Accepts every message as new."""

    class inbox_class(PostgresInbox):
        def insert(self, messages: Sequence[NewMessage], *, all_or_none: bool = False) -> list[tuple[int, UUID]]:
            return super().insert(
                [structs.replace(message, dedupe_key=None) for message in messages], all_or_none=all_or_none
            )


# --- for the simulation: no interleaving is needed to see these errors


class ReusesClaimNumber(PostgresEngine):
    """Claims a task again under its previous claim number."""

    class database_class(RewrittenDatabase):
        name, words = "claim", ("claim_number = task.claim_number + 1", "claim_number = GREATEST(1, task.claim_number)")


class ClaimsFromPausedQueues(PostgresEngine):
    """Ignores that a queue is paused."""

    class database_class(RewrittenDatabase):
        name, words = "claim", ("queue.paused_at IS NOT NULL", "FALSE")


class SendsToFinishedTasks(PostgresEngine):
    """Accepts a message for a task that has failed or was cancelled."""

    class database_class(RewrittenDatabase):
        name, words = "send", ("receiver.finished_at IS NULL OR given.child_status IS NOT NULL", "TRUE")


class KeepsAttempts(PostgresEngine):
    """Does not count attempts, so a failing task is retried for ever."""

    class database_class(RewrittenDatabase):
        name, words = "commit", ("attempts = held.attempts", "attempts = task.attempts")


class WakesTooEarly(PostgresEngine):
    """Wakes tasks that are not due yet, together with one that is."""

    class database_class(RewrittenDatabase):
        name, words = "wake_due", ("AND wake_at <= (SELECT clock_timestamp())", "")


class ReleaseCountsAnAttempt(PostgresEngine):
    """Counts a released task as a failed attempt."""

    class commits_class(PostgresCommits):
        def _write_rows(
            self, outcomes: Sequence[Outcome], holder: UUID | None = None
        ) -> tuple[dict[UUID, Status], set[UUID], set[UUID]]:
            def failed(outcome: Outcome) -> Outcome:
                is_released = outcome.status is Status.READY and not outcome.has_succeeded
                return structs.replace(outcome, attempts=outcome.attempts + 1) if is_released else outcome

            return super()._write_rows(list(map(failed, outcomes)), holder)


class WritesOnlyFirstHeartbeat(PostgresEngine):
    """Writes the first heartbeat only, and reads the claims on later ones."""

    class executors_class(PostgresExecutors):
        def heartbeat(self, executor: ExecutorInfo) -> list[OwnedTask]:
            self.db.heartbeats.bulk_create(
                [Heartbeat(executor_id=executor.executor_id, at=Clock())], ignore_conflicts=True
            )
            self._write_executor(executor)
            rows = self.db.query("tasks_of_executor", executor_id=executor.executor_id)
            return [
                OwnedTask(id=pk, claim_number=number, is_cancel_requested=requested) for pk, number, requested in rows
            ]


class WritesHeartbeatOnTasks(PostgresEngine):
    """Writes each heartbeat on the executor's tasks as well."""

    class executors_class(PostgresExecutors):
        def heartbeat(self, executor: ExecutorInfo) -> list[OwnedTask] | None:
            self.db.tasks.running().filter(executor_id=executor.executor_id).update(claimed_at=Clock())
            return super().heartbeat(executor)


class HeartbeatOmitsCancels(PostgresEngine):
    """Returns no cancel requests with a heartbeat."""

    class executors_class(PostgresExecutors):
        def heartbeat(self, executor: ExecutorInfo) -> list[OwnedTask]:
            return [structs.replace(held, is_cancel_requested=False) for held in super().heartbeat(executor) or ()]


class RescuesByClaimAge(PostgresEngine):
    """Rescues by the age of the claim, not by the executor's last heartbeat."""

    class executors_class(PostgresExecutors):
        def _silent_executors(self) -> dict[UUID, float]:
            return {pk: seconds or 0.0 for pk, seconds in self._holders().items()}

        def _lock_lost(self, ids: Sequence[UUID]) -> list[Task]:
            overdue = self.db.lock(ids).filter(
                status=Status.RUNNING, claimed_at__lt=clock_to_compare(after=-self.db.options.heartbeat_timeout)
            )
            return with_texts(overdue)


class RescuesWithoutRecheck(PostgresEngine):
    """Rescues tasks that were overdue before the lock, without a second check under the lock."""

    class executors_class(PostgresExecutors):
        def _silent_executors(self) -> dict[UUID, float]:
            return defaultdict(float, super()._silent_executors())  # tasks without an executor included

        def _lock_lost(self, ids: Sequence[UUID]) -> list[Task]:
            return with_texts(self.db.lock(ids))


class RescueCountsAnAttempt(PostgresEngine):
    """Counts a lost executor as a failed attempt."""

    class executors_class(PostgresExecutors):
        def _release_lost(
            self, row: Any, silent: Mapping[UUID, float], now: datetime
        ) -> tuple[Rescued, NewMessage | None]:
            self.db.tasks.filter(pk=row.pk).update(attempts=F("attempts") + 1)
            return super()._release_lost(row, silent, now)


class RescueIgnoresCancel(PostgresEngine):
    """Returns a task to its queue although a cancel was requested."""

    class executors_class(PostgresExecutors):
        def _release_lost(
            self, row: Any, silent: Mapping[UUID, float], now: datetime
        ) -> tuple[Rescued, NewMessage | None]:
            row.cancel_requested_at = None
            return super()._release_lost(row, silent, now)


class RescueOmitsParentReport(PostgresEngine):
    """Does not report a child that ends after its last loss, so the parent waits for ever."""

    class executors_class(PostgresExecutors):
        def _release_lost(
            self, row: Any, silent: Mapping[UUID, float], now: datetime
        ) -> tuple[Rescued, NewMessage | None]:
            rescued, _ = super()._release_lost(row, silent, now)
            return rescued, None


class CancelsRunningTasks(PostgresEngine):
    """Ends a RUNNING task as if it were queued."""

    class tasks_class(PostgresTasks):
        def cancel_locked(
            self, rows: Iterable[Any], *, at_once: bool = False
        ) -> tuple[set[UUID], set[UUID], set[UUID]]:
            all_rows = list(rows)
            for row in all_rows:
                if row.status == Status.RUNNING:
                    row.status = Status.READY
            return super().cancel_locked(all_rows, at_once=at_once)


class CancelOmitsParentReport(PostgresEngine):
    """Does not report a cancelled child, so the parent waits for ever."""

    class tasks_class(PostgresTasks):
        def cancel_locked(
            self, rows: Iterable[Any], *, at_once: bool = False
        ) -> tuple[set[UUID], set[UUID], set[UUID]]:
            all_rows = list(rows)
            for row in all_rows:
                row.parent_id = None
            return super().cancel_locked(all_rows, at_once=at_once)


class RequeueKeepsAttempts(PostgresEngine):
    """Requeues a task with its used attempts."""

    class tasks_class(PostgresTasks):
        def _requeue_locked(self, ids: Sequence[UUID]) -> int:
            before = dict(self.db.tasks.filter(pk__in=ids).values_list("pk", "attempts"))
            requeued = super()._requeue_locked(ids)
            for pk, attempts in before.items():
                self.db.tasks.filter(pk=pk).update(attempts=attempts)
            return requeued


class IgnoresKeys(PostgresEngine):
    """Enqueues a second task with the key of a live one."""

    class inserts_class(PostgresInserts):
        def _insert_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
            return super()._insert_batch([structs.replace(row, key=None) for row in rows])


class IgnoresIdempotencyKeys(PostgresEngine):
    """Enqueues a second task with an idempotency key that was used after its check."""

    class enqueues_class(PostgresEnqueues):
        def enqueue_once(self, rows: Sequence[NewTask]) -> list[Enqueued]:
            existing = self.inserts.holders_of_idempotency_keys({row.idempotency_key for row in rows})
            new = [row for row in rows if row.idempotency_key not in existing]
            try:
                with self.db.transaction():
                    created = self.enqueue(new)
            except IntegrityError:
                created = self.enqueue([structs.replace(row, idempotency_key=None) for row in new])
            answers = {row.id: answer for row, answer in zip(new, created, strict=True)}
            return [answers.get(row.id) or existing[row.idempotency_key] for row in rows]


class IgnoresRunningTasks(PostgresEngine):
    """Gives each claim the full limit of a queue."""

    class queues_class(PostgresQueues):
        def count_running(self, limits: Mapping[str, int]) -> dict[str, int]:
            return dict.fromkeys(limits, 0)


class NeverSweeps(PostgresEngine):
    """Leaves tasks asleep that missed a wake."""

    class messages_class(Messages):
        def sweep(self, limit: int = 1000) -> int:
            return 0


class SweepsAllSuspended(PostgresEngine):
    """Wakes every suspended task, with or without messages."""

    class inbox_class(PostgresInbox):
        def suspended_with_messages(self, limit: int) -> list[UUID]:
            return list(self.db.tasks.suspended().values_list("pk", flat=True)[:limit])

"""Deliberately broken engines of limits and unique keys, in the shape of mutants.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q

from jobqueue.engine.admissions import REQUESTS_READ, Admissions, Taken
from jobqueue.engine.limits import Limits
from jobqueue.engine.postgres.admissions import PostgresAdmissions
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.engine.postgres.executors import PostgresExecutors
from jobqueue.engine.postgres.inserts import PostgresEnqueues, PostgresInserts
from jobqueue.engine.postgres.tasks import PostgresTasks
from jobqueue.models import KeyReservation, Task, TaskQuerySet
from jobqueue.models.clock import clock_to_store
from jobqueue.values.records import Admitted, NewTask
from jobqueue.values.states import LimitKind, Status
from verification.interleavings.mutants import RewrittenDatabase


class AdmitsWithoutLocking(PostgresEngine):
    """Counts the tasks of keys without locking the keys."""

    class database_class(RewrittenDatabase):
        name = "take_admission_requests"
        words = ("AND pg_try_advisory_xact_lock(", "OR pg_try_advisory_xact_lock(")


class CountsBeforeLocking(PostgresEngine):
    """Counts the tasks of a key before it locks the key."""

    class admissions_class(PostgresAdmissions):
        def _take_requests(self, limit: int) -> Taken:
            self.counted = self._counted()
            return super()._take_requests(limit)

        def _counted(self) -> Counter[str | None]:
            counting = self.db.tasks.live().filter(
                Q(status__in=[Status.READY, Status.RUNNING]) | Q(counts_while_waiting=True)
            )
            return Counter(counting.values_list("concurrency_key", flat=True))

        def _admit_by_concurrency(self, keys: Sequence[str]) -> Admitted:
            return super(PostgresAdmissions, self)._admit_by_concurrency(keys)

        def _number(self, kind: LimitKind, key: str, declared: int) -> int:
            return super()._number(kind, key, declared) + self._counted()[key] - self.counted[key]


class LosesRequests(PostgresEngine):
    """Takes the requests in a transaction, and admits in a second one."""

    class admissions_class(PostgresAdmissions):
        def admit(self, limit: int = REQUESTS_READ) -> Admitted:
            with self.db.transaction():
                taken = super()._take_requests(limit)
            with self.db.transaction():
                return super().admit_in_transaction() if not taken.keys else self._admit_taken(taken)

        def _admit_taken(self, taken: Taken) -> Admitted:
            return self._admit_by_concurrency([key for kind, key in taken.keys if kind is LimitKind.CONCURRENCY])


class ForgetsLockedTasks(PostgresEngine):
    """Does not look again if another session has locked a task that may be admitted."""

    class database_class(RewrittenDatabase):
        name = "admit_by_concurrency"
        words = ("WHERE limited.allowed > taken.number", "WHERE FALSE AND limited.allowed > taken.number")


class WaitsForLockedTasks(PostgresEngine):
    """Waits until another session has ended that has locked a task."""

    class database_class(RewrittenDatabase):
        name = "admit_by_concurrency"
        words = ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")


class KeepsLaterRequest(PostgresEngine):
    """Does not look again soon if a look at the end of the window is planned."""

    class database_class(RewrittenDatabase):
        name = "admit_by_rate"
        words = ("next.number IS NULL\n", "FALSE\n")


class SavesUpBudget(PostgresEngine):
    """Does not count READY tasks, so that each second more of them become READY."""

    class database_class(RewrittenDatabase):
        name = "admit_by_rate"
        words = ("task.status IN ('READY', 'RUNNING')", "task.status = 'RUNNING'")


class ForgetsEarlierStarts(PostgresEngine):
    """Counts only the last start of each task."""

    class database_class(RewrittenDatabase):
        name = "settle_limits"
        words = (
            "AND task.rate_key IS NOT NULL AND task.start_counted_at IS NULL",
            "AND task.rate_key IS NOT NULL AND task.status NOT IN ('READY', 'BLOCKED', 'SCHEDULED')",
        )


class ForgetsClaimedTasks(PostgresEngine):
    """Does not count claimed tasks whose bodies may start at any moment."""

    class database_class(RewrittenDatabase):
        name = "admit_by_rate"
        words = ("AND task.start_counted_at IS NULL", "AND FALSE")


class PrunesStarts(PostgresEngine):
    """Forgets starts that a rate still counts."""

    class admissions_class(PostgresAdmissions):
        def prune(self, limit: int = 1000) -> int:
            return self._starts.filter(backend=self.db.backend).delete()[0]


class ForgetsLostStarts(PostgresEngine):
    """Does not count the starts of tasks of lost executors."""

    class admissions_class(PostgresAdmissions):
        def count_lost(self, ids: Collection[UUID]) -> None:
            pass


class NoRequests(PostgresAdmissions):
    def request(self, ids: Collection[UUID], *, are_freed: bool = False) -> None:
        pass


class RequestsNothingAtTheEnd(PostgresEngine):
    """Does not request to look at the limits of tasks that have ended."""

    class admissions_class(PostgresAdmissions):
        def settle(self, ended: Mapping[UUID, float | None]) -> None:
            Admissions.settle(NoRequests(self.db), ended)


class RunsAgainAtOnce(PostgresEngine):
    """Leaves a released task READY, although each start counts for its rate."""

    class admissions_class(PostgresAdmissions):
        def settle(self, ended: Mapping[UUID, float | None]) -> None:
            self._store_starts({pk: seconds for pk, seconds in ended.items() if seconds is not None})
            self.request(ended)


class RequestsNothingAfterTheLastLoss(PostgresEngine):
    """Does not request to look at the limits of rescued tasks."""

    class executors_class(PostgresExecutors):
        def rescue(self, *arguments: Any) -> Any:
            self.admissions = NoRequests(self.db)
            return super().rescue(*arguments)


class RequeueSkipsLimit(PostgresEngine):
    """Makes a requeued task READY at once."""

    class tasks_class(PostgresTasks):
        def _requeue_locked(self, ids: Sequence[UUID]) -> int:
            count = super()._requeue_locked(ids)
            self.db.tasks.blocked().filter(pk__in=ids).update(status=Status.READY)
            return count


class WakeDueSkipsLimit(PostgresEngine):
    """Makes a task READY when it is due, although another task counts instead."""

    class database_class(RewrittenDatabase):
        name = "wake_due"
        words = ("THEN 'BLOCKED' ELSE 'READY'", "THEN 'READY' ELSE 'READY'")


class WakeSkipsLimit(PostgresEngine):
    """Makes an actor with a message READY, although another task counts instead."""

    class database_class(RewrittenDatabase):
        name = "wake"
        words = ("THEN 'BLOCKED' ELSE 'READY'", "THEN 'READY' ELSE 'READY'")


class RequestsNumbersOnce(PostgresEngine):
    """Requests to look at the keys of a changed limit before its new number is committed."""

    class limits_class(Limits):
        def set(self, *arguments: Any, **options: Any) -> None:
            with self.db.transaction():
                super().set(*arguments, **options)


class TrustsAnEarlierRead(PostgresEngine):
    """Returns the task of a reservation that it has read, although it has expired, if it cannot renew it."""

    class enqueues_class(PostgresEnqueues):
        def _reserve_key(self, row: NewTask) -> UUID:
            values = {"task_id": row.id, "expires_at": clock_to_store(after=row.unique_for_seconds or 0.0)}
            held, is_new = KeyReservation.objects.get_or_create(
                backend=self.db.backend, key=row.key or "", defaults=values
            )
            expired = self._reservations(row.key).filter(expires_at__lte=self.db.now())
            return row.id if is_new or expired.update(**values) else held.task_id


class PrunesRenewedKeys(PostgresEngine):
    """Deletes reservations that had expired when it read them, before it locked them."""

    class admissions_class(PostgresAdmissions):
        def prune(self, limit: int = 1000) -> int:
            rows = KeyReservation.objects.filter(backend=self.db.backend)
            expired = list(rows.filter(expires_at__lte=self.db.now()).values_list("pk", flat=True)[:limit])
            with self.db.transaction():
                locked = self.db.with_lock(rows.filter(pk__in=expired), no_key=False).only("pk")
                rows.filter(pk__in=[row.pk for row in locked])._raw_delete(self.db.using)
            return len(expired)


class ReplacesWithoutLocking(PostgresEngine):
    """Replaces a task that may have started since it was read."""

    class database_class(PostgresDatabase):
        def with_lock(self, rows: Any, *, wait: bool = False, no_key: bool = True) -> Any:
            return rows if wait else super().with_lock(rows, no_key=no_key)


class ReplacesInOrderOfKeys(PostgresEngine):
    """Locks the tasks that it replaces in the order of their keys, and cancel() locks them in that of their ids."""

    class inserts_class(PostgresInserts):
        def holders(self, keys: Collection[str | None]) -> TaskQuerySet:
            return super().holders(keys) if len(keys) == 1 else Task.objects.none()

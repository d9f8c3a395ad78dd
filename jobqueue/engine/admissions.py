"""Admission: make BLOCKED tasks READY when their limits by key allow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, DateTimeField, ExpressionWrapper, F, Q, QuerySet, When

from jobqueue.engine.database import Part
from jobqueue.engine.limit_conditions import (
    INDEXED,
    IS_STARTING,
    WAITS_FOR_CONCURRENCY,
    WAITS_FOR_RATE,
    tasks_of_limit,
)
from jobqueue.models import AdmissionRequest, KeyReservation, Limit, RateStart, TaskQuerySet
from jobqueue.models.clock import Clock, rank_from
from jobqueue.values.failpoints import failpoint
from jobqueue.values.limit_keys import SEPARATOR, split_key
from jobqueue.values.records import Admitted, ClaimedTask, Start
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.states import LimitKind, Status
from jobqueue.values.text import printable

logger = safe_logger(__name__)

REQUESTS_READ = 1000
KEYS_LOOKED_AT = 200  # at once. In PostgreSQL, each has one of 4,096 locks
REPEATS_DELETED = 20_000  # further due requests of these keys, if there are more than REQUESTS_READ
ADMITTED_AT_ONCE = 1000  # tasks of all keys of a look. A large limit must not hold up the executor
ROUNDS = 3  # a task may wait for its concurrency limit, then for its rate; large limits admit in parts
AGAIN_SECONDS = 0.05  # until it looks again at a key, if another session has locked a task that may run
KEYS_PER_SECOND = 5000  # of a limit with a new number for all keys, so that the keys of other limits do not wait
POSTPONED_SECONDS = 60.0  # until it looks again at a key that took too long: it must not stop the others
GROUPS_PER_PERIOD = 100  # a rate with a higher limit admits its tasks in groups
# A body needs a moment until its first request reaches another server. Its start counts so much later: seconds at most,
# and at most this part of the period.
LATE_SECONDS, LATE_PART = 0.05, 0.05

Key = tuple[LimitKind, str]


class Taken(NamedTuple):
    """Due requests that were taken."""

    keys: dict[Key, bool]  # in the order of their requests, each with whether a request is urgent or a planned look
    is_more: bool  # other requests may be due


@cache
def is_known(kind: str) -> bool:
    """Return whether this code knows a kind of limit. If not, log it once: newer code has inserted the request."""
    if kind in {*LimitKind}:
        return True
    logger.warning(
        "admission.ignored kind=%s hint=Newer code has inserted requests of this kind. Its executors answer them.",
        printable(kind),
    )
    return False


def is_urgent(request: AdmissionRequest) -> bool:
    """
    Return whether a taken request wants a look in any case. Another one waits for the planned look, if there is one.
    """
    return request.is_urgent or request.number is not None


def at_once(keys: Collection[str]) -> int:
    """Return how many tasks of each key a look admits at most."""
    return max(1, ADMITTED_AT_ONCE // len(keys))


class Admissions(Part):
    """
    Requests to look at keys, and their answers.

    Each change after which a BLOCKED task may run inserts a request in its own transaction. After the commit, admit()
    takes the request, locks its key, and admits tasks. If another session has locked a key or a task, a request stays
    or is inserted again.

    It has more than 20 methods because requests, their keys and both kinds of limits share one transaction.
    """

    def request(self, ids: Collection[UUID], *, are_freed: bool = False) -> None:
        """
        Insert requests for the keys of tasks, in the transaction that has changed the tasks.

        are_freed: their rates count less than before, so that the requests are urgent.
        """
        rows = self.db.by_ids(ids)
        concurrency = _values(rows.filter(concurrency_key__isnull=False), "concurrency_key")
        self.insert_requests({(LimitKind.CONCURRENCY, key) for key in concurrency})
        rates = _values(rows.filter(rate_key__isnull=False), "rate_key")
        self.insert_requests({(LimitKind.RATE, key) for key in rates}, is_urgent=are_freed)

    def settle(self, ended: Mapping[UUID, float | None]) -> None:
        """
        Apply the limits of tasks whose outcomes this transaction has written, and request a look at their keys.

        A rate counts each start, so a task that is to run again becomes BLOCKED. It still counts for its concurrency
        limit. So does a task with count_while_retrying that waits to run again. A task that was released after its
        claim gets the rank of its enqueue, not of its admission. So it is before the tasks that were BLOCKED behind it.
        ended: by task, the seconds since its body has begun; None: no start that a rate counts.
        """
        ids = ended.keys()
        self._store_starts({pk: seconds for pk, seconds in ended.items() if seconds is not None})
        aging = self.db.options.aging
        is_released = When(rank__lt=rank_from(F("last_attempted_at"), aging), then=rank_from(F("enqueued_at"), aging))
        rows = self.db.by_ids(ids)
        again = rows.filter(status=Status.READY, rate_key__isnull=False)
        again.update(
            status=Status.BLOCKED,
            counts_while_waiting=Case(When(concurrency_key__isnull=False, then=True), default=False),
            rank=Case(is_released, default=F("rank")),
        )
        rows.filter(status=Status.SCHEDULED, count_while_retrying=True).update(counts_while_waiting=True)
        self.request([pk for pk, seconds in ended.items() if seconds is not None])
        self.request([pk for pk, seconds in ended.items() if seconds is None], are_freed=True)

    # --- starts of bodies

    @property
    def _starts(self) -> QuerySet[RateStart]:
        return RateStart.objects.using(self.db.using)

    def count_starts(self, starts: Sequence[Start]) -> set[UUID]:
        """
        Count the starts of bodies that still run. Return their tasks, without those of which the row is locked.

        Until then such a task counts as one that may start at any moment. If its body ends before, settle() counts the
        start. A claim without a start of its body does not count for the rate.
        Locks: the rows, skipping locked ones.
        """
        seconds = {start.task_id: start.begun_seconds for start in starts}
        numbers = {start.task_id: start.claim_number for start in starts}
        with self.db.transaction():
            rows = self.db.lock(seconds).filter(status=Status.RUNNING).only("pk", "claim_number")
            held = [row.pk for row in rows if row.claim_number == numbers[row.pk]]
            self._store_starts({pk: seconds[pk] for pk in held})
            rows = self.db.tasks.filter(pk__in=held)
            rows.update(start_counted_at=Clock())
            # A look that found no start has planned no next one.
            self.insert_requests({(LimitKind.RATE, key) for key in _values(rows, "rate_key") if key is not None})
        return set(held)

    def _store_starts(self, begun: Mapping[UUID, float]) -> None:
        """Store starts of locked tasks with a rate that are not counted yet. begun: by task, the seconds since then."""
        if not begun:
            return
        now = self.db.now()
        rows = self.db.by_ids(begun).filter(rate_key__isnull=False, start_counted_at__isnull=True)
        starts = []
        for pk, key, period in rows.values_list("pk", "rate_key", "rate_seconds"):
            late = min(LATE_SECONDS, (period or 1.0) * LATE_PART)
            at = now - timedelta(seconds=max(0.0, begun[pk] - late))
            expires_at = at + timedelta(seconds=period or 1.0)
            starts.append(RateStart(backend=self.db.backend, key=str(key), started_at=at, expires_at=expires_at))
        self._starts.bulk_create(starts)

    def count_lost(self, ids: Collection[UUID]) -> None:
        """Count the starts of locked tasks of lost executors: their bodies may have begun."""
        self._store_starts(dict.fromkeys(ids, 0.0))

    # --- looks

    def insert_requests(self, keys: Iterable[Key], due_at: datetime | None = None, **columns: Any) -> None:
        self._requests.bulk_create(
            [
                AdmissionRequest(backend=self.db.backend, kind=kind, key=key, due_at=due_at or Clock(), **columns)
                for kind, key in sorted(keys)
            ]
        )

    def request_all(self, kind: LimitKind, key: str) -> None:
        """Request to look at all keys of a limit that have BLOCKED tasks."""
        waiting = self.db.tasks.filter(INDEXED[kind] & tasks_of_limit(kind, key), status=Status.BLOCKED)
        self.insert_requests({(kind, limit_key) for limit_key in _values(waiting, f"{kind}_key")})

    @property
    def _requests(self) -> Any:
        return AdmissionRequest.objects.using(self.db.using)

    def admit(self, limit: int = REQUESTS_READ) -> Admitted:
        """
        Look at the keys with a due request, and make READY the tasks that may run now, lowest rank first.

        limit: of requests at once. Locks: the keys, skipping those that another session has locked; then the tasks,
        skipping locked ones. It counts in a later statement than the lock, so that the count contains what other
        sessions committed before.
        """
        admitted = Admitted()
        for _ in range(ROUNDS):
            with self.db.transaction():
                batch = self.admit_in_transaction(limit)
                if batch.keys_seen:
                    failpoint("admit.before")
            if not batch.keys_seen:
                break
            failpoint("admit.after")
            admitted += batch
            if not batch.has_more:
                break
        return admitted

    def admit_in_transaction(self, limit: int = REQUESTS_READ) -> Admitted:
        """Admit in the caller's transaction. Locks: as admit()."""
        taken = self._take_requests(limit)
        of_kind = {
            kind: {key: is_urgent for (taken_kind, key), is_urgent in taken.keys.items() if taken_kind is kind}
            for kind in LimitKind
        }
        admitted = Admitted(keys_seen=len(taken.keys), has_more=taken.is_more)
        if concurrency := of_kind[LimitKind.CONCURRENCY]:
            admitted += self._admit_by_concurrency([*concurrency])
        if rates := of_kind[LimitKind.RATE]:
            admitted += self._admit_by_rate(rates)
        return admitted

    def postpone(self) -> None:
        """Let the requests of the first due key wait for POSTPONED_SECONDS. Locks: these requests."""
        now = self.db.now()
        due = self._requests.filter(backend=self.db.backend, due_at__lte=now)
        first = due.order_by("backend", "due_at", "id").values_list("kind", "key").first()
        if first is not None:
            kind, key = first
            due.filter(kind=kind, key=key).update(due_at=now + timedelta(seconds=POSTPONED_SECONDS))
            logger.warning("admission.postponed kind=%s key=%s wait_s=%g", kind, printable(key), POSTPONED_SECONDS)

    def bring_forward(self, seconds: float, after: int = 0, limit: int = 10_000) -> int | None:
        """
        Let the next requests behind an id be due so much earlier: the server's clock was set back.

        Return the id of the last one; None if there are no more. Locks: they, skipping locked ones.
        """
        rows = self._requests.filter(backend=self.db.backend)
        earlier = ExpressionWrapper(F("due_at") - timedelta(seconds=seconds), DateTimeField())
        with self.db.transaction():
            later = rows.filter(pk__gt=after, due_at__gt=self.db.now()).order_by("pk")
            ids = [request.pk for request in self.db.with_lock(later).only("pk")[:limit]]
            rows.filter(pk__in=ids).update(due_at=earlier)
        return ids[-1] if len(ids) == limit else None

    def next_due(self) -> datetime | None:
        """Return when the next request is due."""
        rows = self._requests.filter(backend=self.db.backend).order_by("backend", "due_at")
        due_at: datetime | None = rows.values_list("due_at", flat=True).first()
        return due_at

    def _take_requests(self, limit: int) -> Taken:
        """
        Delete the due requests of some keys, and lock the keys.

        If there are more requests than `limit`, it reads the newest ones, too, so that many requests of one key do not
        delay other keys. SQLite has one writer, so it needs no locks. PostgreSQL tries a lock for each key:
        take_admission_requests.sql.
        """
        due = self._requests.filter(backend=self.db.backend, due_at__lte=self.db.now()).order_by("due_at", "id")
        requests = list(self.db.with_lock(due, wait=True)[:limit])
        if is_full := len(requests) == limit:
            requests += self.db.with_lock(due.reverse(), wait=True)[:limit]
        keys: dict[Key, bool] = {}
        taken: set[int] = set()
        for request in requests:
            if is_known(request.kind):
                key = LimitKind(request.kind), request.key
                if key in keys or len(keys) < KEYS_LOOKED_AT:
                    keys[key] = keys.get(key, False) or is_urgent(request)
                    taken.add(request.pk)
        for kind, text in list(keys) if is_full else ():
            repeated = self.db.with_lock(due.filter(kind=kind, key=text), wait=True)
            for request in repeated[: REPEATS_DELETED // len(keys)]:
                keys[kind, text] |= is_urgent(request)
                taken.add(request.pk)
        self._requests.filter(pk__in=taken)._raw_delete(self.db.using)
        return Taken(keys, is_full or len(keys) >= KEYS_LOOKED_AT)

    def _admit_by_concurrency(self, keys: Sequence[str]) -> Admitted:
        """
        Let the tasks of concurrency keys count, lowest rank first, as many as the limit allows.

        Those without a rate become READY. The others stay BLOCKED and wait for their rate.
        """
        queues: Counter[str] = Counter()
        has_more, share = False, at_once(keys)
        for key in keys:
            of_key = self.db.tasks.filter(concurrency_key=key)
            waiting = of_key.filter(WAITS_FOR_CONCURRENCY).order_by("rank", "pk")
            declared = waiting.values_list("concurrency_limit", flat=True).first()
            if declared is None:
                continue
            counts = of_key.live().filter(Q(status__in=[Status.READY, Status.RUNNING]) | Q(counts_while_waiting=True))
            number = self._number(LimitKind.CONCURRENCY, key, declared)
            allowed = number - counts[:number].count()
            admitted = self._lock_best(waiting, min(allowed, share))
            admissible = of_key.filter(pk__in=admitted)
            admissible.filter(rate_key__isnull=True).update(**self._ready())
            admissible.filter(rate_key__isnull=False).update(counts_while_waiting=True)
            rows = self.db.tasks.filter(pk__in=admitted)
            queues.update(rows.ready().values_list("queue_name", flat=True))
            again = {(LimitKind.RATE, key) for key in _values(rows.blocked(), "rate_key")}
            self.insert_requests(again)
            if len(admitted) < allowed and waiting.exists():
                self._ask_again({(LimitKind.CONCURRENCY, key)}, is_locked=len(admitted) < share)
                has_more = True
            has_more = has_more or bool(again)
        return Admitted(queues=queues, has_more=has_more)

    def _admit_by_rate(self, keys: Mapping[str, bool]) -> Admitted:
        """
        Make the tasks of rate keys READY, lowest rank first, as many as their rate allows now.

        keys: each with whether a request is urgent. If it is not, nothing is counted before the planned look.
        """
        queues: Counter[str] = Counter()
        has_more, share = False, at_once(keys)
        for key, must_look in keys.items():
            of_key = self.db.tasks.filter(rate_key=key)
            waiting = of_key.filter(WAITS_FOR_RATE).order_by("rank", "pk")
            declared = waiting.values_list("rate_limit", "rate_seconds").first()
            if declared is None:
                continue
            number, period = self._number(LimitKind.RATE, key, declared[0] or 1), timedelta(seconds=declared[1] or 1.0)
            now = self.db.now()
            if not must_look and self._planned(key, number, now, now + period).exists():
                continue
            starting = of_key.filter(IS_STARTING).count()  # first: what starts in between counts twice, not never
            # A start further ahead than a period is ignored: the server's clock was set back.
            counted = self._starts.filter(
                backend=self.db.backend, key=key, started_at__gt=now - period, started_at__lte=now + period
            )
            starts = list(counted.order_by("started_at").values_list("started_at", flat=True))
            allowed = number - len(starts) - starting
            admitted = self._lock_best(waiting, min(allowed, share))
            queues.update(self.db.tasks.filter(pk__in=admitted).values_list("queue_name", flat=True))
            of_key.filter(pk__in=admitted).update(**self._ready(), start_counted_at=None)
            if waiting.exists():
                has_changed = of_key.filter(IS_STARTING).count() != starting + len(admitted)  # one may count twice
                if len(admitted) < allowed or has_changed:
                    self._ask_again({(LimitKind.RATE, key)}, is_locked=len(admitted) < share)
                    has_more = True
                elif starts:
                    after = max(0, -allowed) + (number - 1) // GROUPS_PER_PERIOD
                    due_at = starts[min(after, len(starts) - 1)] + period
                    if not self._planned(key, number, now, due_at).exists():
                        self.insert_requests({(LimitKind.RATE, key)}, due_at, number=number)
                        has_more = True
        return Admitted(queues=queues, has_more=has_more)

    def _planned(self, key: str, number: int, now: datetime, until: datetime) -> QuerySet[AdmissionRequest]:
        """Select the planned looks at a rate with this number that are due later, until a time."""
        of_key = self._requests.filter(backend=self.db.backend, kind=LimitKind.RATE, key=key, number=number)
        planned: QuerySet[AdmissionRequest] = of_key.filter(due_at__gt=now, due_at__lte=until)
        return planned

    def _ready(self) -> dict[str, Any]:
        """
        Return the new values of tasks that become READY.

        With its old rank, each of them would overtake tasks of other keys that became READY before it.
        """
        return {
            "status": Status.READY,
            "counts_while_waiting": False,
            "rank": rank_from(Clock(), self.db.options.aging),
        }

    def _lock_best(self, waiting: TaskQuerySet, allowed: int) -> list[UUID]:
        return [row.pk for row in self.db.with_lock(waiting).only("pk")[:allowed]] if allowed > 0 else []

    def _ask_again(self, keys: Collection[Key], *, is_locked: bool = True) -> None:
        """Request to look again, after AGAIN_SECONDS if another session has locked a task."""
        due_at = self.db.now() + timedelta(seconds=AGAIN_SECONDS if is_locked else 0.0)
        self.insert_requests(keys, due_at, is_urgent=True)

    def _number(self, kind: LimitKind, key: str, declared: int) -> int:
        """Return the number that people have set for a key, else for all keys of its limit, else the declared one."""
        name, _ = split_key(key)
        rows = Limit.objects.using(self.db.using).filter(backend=self.db.backend, kind=kind)
        numbers = dict(rows.filter(key__in=[key, f"{name}{SEPARATOR}"]).values_list("key", "number"))
        return numbers.get(key, numbers.get(f"{name}{SEPARATOR}", declared))

    def impose_limits(self, claims: Iterable[tuple[ClaimedTask, dict[str, Any]]]) -> set[UUID]:
        """
        Give claimed tasks the limits that their code declares, and make them BLOCKED. Return the ids of these tasks.

        They were enqueued by SQL, or before their code declared the limits. Locks: the rows, skipping locked ones.
        """
        changed: set[UUID] = set()
        with self.db.transaction():
            for claimed, columns in claims:
                locked = self.db.lock([claimed.id]).filter(claim_number=claimed.claim_number, status=Status.RUNNING)
                for row in locked.only("pk"):
                    self.db.tasks.filter(pk=row.pk).update(
                        **columns,
                        status=Status.BLOCKED,
                        executor_id=None,
                        claimed_at=None,
                        counts_while_waiting=False,
                    )
                    changed.add(row.pk)
            self.request(changed)
        return changed

    def prune(self, limit: int = 1000) -> int:
        """
        Delete starts that no rate counts any more, and reservations of unique keys that have expired.

        Return the higher one of both numbers. limit: of each. Each in a transaction of its own, because callers wait
        for a reservation that is being deleted.
        Locks: the rows, skipping locked ones: a caller may be about to renew a reservation.
        """
        highest = 0
        for model in (RateStart, KeyReservation):
            rows = model._default_manager.using(self.db.using).filter(backend=self.db.backend)
            expired = rows.filter(expires_at__lte=self.db.now())
            with self.db.transaction():
                oldest = self.db.with_lock(expired.order_by("expires_at"), no_key=False).only("pk")[:limit]
                ids = [row.pk for row in oldest]
                expired.filter(pk__in=ids)._raw_delete(self.db.using)
            highest = max(highest, len(ids))
        return highest


def _values(rows: TaskQuerySet, column: str) -> list[Any]:
    return list(rows.order_by().values_list(column, flat=True).distinct())

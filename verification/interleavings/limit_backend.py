"""Tasks with limits and with unique keys under the alias of a race, and a record of what started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.db import connections, transaction
from msgspec import structs

from jobqueue.engine import admissions
from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres import admissions as postgres_admissions
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import AdmissionRequest, KeyReservation, Limit
from jobqueue.values.ids import new_id
from jobqueue.values.records import ClaimedTask, ClaimRequest, Enqueued, NewTask, Outcome, Start
from jobqueue.values.states import LimitKind, Status
from verification.interleavings.backend import (
    Claim,
    Decide,
    IsolatedBackend,
    crash_at_commit,
    outcome,
    succeed,
)

QUEUE = "task"
WINDOW = 3600.0  # seconds of each rate: no race lasts so long
SOON = 1.0  # seconds: requests that come due so soon are those that were repeated because of a lock

TABLES = ("admissionrequest", "ratestart", "keyreservation", "limit")
SAVE = ";".join(
    f"""
    DROP TABLE IF EXISTS saved_{table};
    CREATE TEMPORARY TABLE saved_{table} AS SELECT * FROM jobqueue_{table} WHERE backend = %(backend)s
    """
    for table in TABLES
)
CLEAR = ";".join(f"DELETE FROM jobqueue_{table} WHERE backend = %(backend)s" for table in TABLES)
RESTORE = CLEAR + "".join(f"; INSERT INTO jobqueue_{table} SELECT * FROM saved_{table}" for table in TABLES)

# Let the window of each rate pass.
PASS_TIME = """
    UPDATE jobqueue_ratestart SET
        started_at = started_at - %(by)s * interval '1 second', expires_at = expires_at - %(by)s * interval '1 second'
    WHERE backend = %(backend)s;
    UPDATE jobqueue_admissionrequest SET due_at = due_at - %(by)s * interval '1 second' WHERE backend = %(backend)s
"""


@dataclass
class LimitRecords:
    """
    What the clients did. The rules compare it to the rows.

    limits: of each key, the highest number that may hold. windows: how many windows of the rates have passed. starts:
    of each rate key and window, how many starts the rate has counted; each body has begun just before that. counted:
    the claims of these. calls: the numbers of calls with a unique key, in the order in which they succeeded. ran: the
    numbers of the calls whose tasks have started. answers: tasks that enqueue() named. created: those that it created.
    """

    limits: dict[str, int] = field(default_factory=dict)
    windows: int = 0
    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    counted: set[Claim] = field(default_factory=set)
    calls: list[int] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    answers: list[UUID] = field(default_factory=list)
    created: list[UUID] = field(default_factory=list)


class LimitBackend(IsolatedBackend):
    """
    Tasks with limits in one queue, and the verbs of the engine that concern limits.

    It has more than 20 methods because each operation of a scenario is one.
    """

    def __init__(self, kind: type[Engine]) -> None:
        super().__init__(kind)
        self.limits = LimitRecords()
        self.claimed: dict[UUID, ClaimedTask] = {}
        self.last_call_runs = False  # whether the last call with a unique key must start last
        self.only_one = False  # whether the calls create one task together
        self.may_wait = False  # whether callers with a unique key may wait for each other

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let requests of locked tasks be due after each order: an order may be slow."""
        with (
            patch.object(admissions, "AGAIN_SECONDS", SOON / 2),
            patch.object(postgres_admissions, "AGAIN_SECONDS", SOON / 2),
        ):
            yield

    # --- between orders

    def save(self) -> None:
        self._execute(SAVE)
        super().save()
        self._saved_limits = deepcopy((self.limits, self.claimed))

    def restore(self) -> None:
        self._execute(RESTORE)
        super().restore()
        self.limits, self.claimed = deepcopy(self._saved_limits)

    def clear(self) -> None:
        self._execute(CLEAR)
        super().clear()

    # --- before the order

    def limited(self, name: str = "limited", limit: int = 1, key: str = "imports:anna", **changes: Any) -> UUID:
        """Enqueue a task with a concurrency limit."""
        self.limits.limits[key] = max(limit, self.limits.limits.get(key, 0))
        return self.enqueue_one(name, concurrency_key=key, concurrency_limit=limit, **changes)

    def rated(self, name: str = "rated", limit: int = 1, key: str = "api:", **changes: Any) -> UUID:
        """Enqueue a task with a rate limit."""
        self.limits.limits[key] = max(limit, self.limits.limits.get(key, 0))
        return self.enqueue_one(name, rate_key=key, rate_limit=limit, rate_seconds=WINDOW, **changes)

    def both(self, name: str = "both", *, concurrency_key: str = "imports:anna", rate: int = 1) -> UUID:
        """Enqueue a task with both limits, at 1 for the concurrency."""
        self.limits.limits["api:"] = rate
        return self.limited(name, 1, concurrency_key, rate_key="api:", rate_limit=rate, rate_seconds=WINDOW)

    def unique(self, name: str = "unique", **changes: Any) -> UUID:
        return self.enqueue_one(name, key="digest", **changes)

    def enqueue_one(self, name: str, **changes: Any) -> UUID:
        pk = new_id()
        with transaction.atomic():
            self.engine.enqueues.enqueue([NewTask(id=pk, task_type="tests.noop", queue_name=QUEUE, **changes)])
        self.names[pk] = name
        return pk

    def start(self, limit: int = 1) -> list[ClaimedTask]:
        """Admit and claim."""
        self.engine.admissions.admit()
        return self.claim(QUEUE, limit=limit)

    def running(self, name: str, executor_id: UUID | None = None, **changes: Any) -> ClaimedTask:
        self.enqueue_one(name, **changes)
        self.engine.admissions.admit()
        (claimed,) = self.claim(QUEUE, executor_id=executor_id)
        return claimed

    def set_highest(self, key: str, number: int) -> None:
        """Note that people may set a number."""
        self.limits.limits[key] = max(number, self.limits.limits.get(key, 0))

    # --- what executors do

    def _record_claims(self, request: ClaimRequest, claimed: Sequence[ClaimedTask]) -> None:
        super()._record_claims(request, claimed)
        for task in claimed:
            self.claimed[task.id] = task
            self.limits.ran += [int(number) for number in task.args.strip("[]").split(",") if number]

    def _record_done(self, result: Outcome, entered: Status) -> None:
        super()._record_done(result, entered)
        if result.begun_seconds is not None:
            self._record_start((result.task_id, result.claim_number))

    def _record_ending(self, claim: Claim, how: str) -> None:
        super()._record_ending(claim, how)
        if how == "rescued":  # perhaps its body had begun
            self._record_start(claim)

    def _record_start(self, claim: Claim) -> None:
        key = self.claimed[claim[0]].rate_key
        if key is not None and claim not in self.limits.counted:
            self.limits.counted.add(claim)
            self.limits.starts[key, self.limits.windows] += 1

    def admit(self) -> None:
        self.engine.admissions.admit()

    def request(self, task_id: UUID) -> None:
        """Request to look at the limits of a task."""
        with self.engine.db.transaction():
            self.engine.admissions.request([task_id])

    def admit_and_claim(self, limit: int = 1) -> None:
        self.admit()
        self.claim(QUEUE, limit=limit)

    def admit_and_crash(self, *, after: bool) -> None:
        with crash_at_commit(after=after):
            self.engine.admissions.admit()

    def end(self, *claimed: ClaimedTask, decide: Decide = succeed) -> None:
        self.commit(*[decide(task, ()) for task in claimed])

    def end_and_claim(self, claimed: ClaimedTask, decide: Decide = succeed) -> None:
        """Commit, admit and claim in one transaction, as an executor does."""
        self.commit_and_claim(decide(claimed, ()), QUEUE)

    def end_and_crash(self, claimed: ClaimedTask) -> None:
        """Lose the transaction that ends one task, admits another and claims it."""
        with crash_at_commit(after=False):
            self.end_and_claim(claimed)

    def release(self, claimed: ClaimedTask, *, has_begun: bool = False) -> None:
        result = release(claimed, ())
        self.commit(result if has_begun else structs.replace(result, begun_seconds=None))

    def count_start(self, claimed: ClaimedTask) -> None:
        """Let the rate count a body that runs on."""
        if self.engine.admissions.count_starts([Start(claimed.id, claimed.claim_number, 0.0)]):
            self._record_start((claimed.id, claimed.claim_number))

    def wake_due(self) -> None:
        self.engine.inbox.wake_due()

    def apply(self, *claimed: ClaimedTask, key: str = "imports:anna") -> None:
        """Give claimed tasks the limit that their code declares."""
        self.limits.limits.setdefault(key, 1)
        columns = {"concurrency_key": key, "concurrency_limit": 1}
        for pk in self.engine.admissions.impose_limits([(task, columns) for task in claimed]):
            self._record_ending((pk, self.claimed[pk].claim_number), "blocked")

    # --- what callers and people do

    def call(self, number: int, **options: Any) -> None:
        """Enqueue with the unique key. A call is known by its number, which is the argument of its task."""
        self._call([("digest", number)], **options)

    def call_with_keys(self, *keys: str, **options: Any) -> None:
        """Enqueue several rows in one call."""
        self._call([(key, number) for number, key in enumerate(keys)], **options)

    def _call(self, calls: Sequence[tuple[str, int]], **options: Any) -> None:
        rows = [
            NewTask(id=new_id(), task_type="tests.noop", queue_name=QUEUE, key=key, args=f"[{number}]", **options)
            for key, number in calls
        ]
        with suppress(DuplicateKey):
            with transaction.atomic():
                answers = self.engine.enqueues.enqueue(rows)
            self._record_answers([number for _, number in calls], answers)

    def _record_answers(self, numbers: Collection[int], answers: Sequence[Enqueued]) -> None:
        self.limits.calls += numbers
        for answer in answers:
            self.limits.answers.append(answer.id)
            self.names.setdefault(answer.id, "called")
            if answer.created:
                self.limits.created.append(answer.id)

    def expire_reservations(self) -> None:
        """Let the time of all reservations pass, and forget the calls that made them."""
        KeyReservation.objects.filter(backend=self.engine.alias).update(expires_at=self.engine.db.now())
        self.limits.answers.clear()
        self.limits.created.clear()

    def prune_reservations(self) -> None:
        self.engine.admissions.prune()

    def roll_back(self, **changes: Any) -> None:
        """Enqueue in a transaction that is rolled back."""
        with transaction.atomic():
            self.engine.enqueues.enqueue([NewTask(id=new_id(), task_type="tests.noop", queue_name=QUEUE, **changes)])
            transaction.set_rollback(True)

    def cancel_and_roll_back(self, task_id: UUID) -> None:
        with transaction.atomic():
            self.engine.tasks.cancel([task_id])
            transaction.set_rollback(True)

    def cancel_all(self, *ids: UUID) -> None:
        """Cancel several tasks in one call, which waits for locks."""
        with transaction.atomic():
            ended = set(self.engine.db.tasks.live().filter(pk__in=ids).values_list("pk", flat=True))
            self.engine.tasks.cancel(ids)
            ended &= set(self.engine.db.tasks.filter(pk__in=ids, status=Status.CANCELLED).values_list("pk", flat=True))
        for pk in ended:
            self._record_finished(pk, Status.CANCELLED)

    def set_number(self, number: int | None, key: str = "imports:anna") -> None:
        self.engine.limits.set(LimitKind.CONCURRENCY, key, number)

    # --- after the order

    def admit_at_last(self) -> None:
        """Do what maintenance does within a second."""
        for _ in range(2):
            now = self.engine.db.now()
            rows = AdmissionRequest.objects.filter(backend=self.engine.alias)
            rows.extra(where=[f"due_at <= clock_timestamp() + interval '{SOON} seconds'"]).update(due_at=now)
            self.engine.admissions.admit()

    def pass_time(self) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(PASS_TIME, {"backend": self.engine.alias, "by": WINDOW + 1})
        self.limits.windows += 1

    def number_of(self, kind: LimitKind, key: str, declared: int) -> int:
        name = key.partition(":")[0]
        rows = Limit.objects.filter(backend=self.engine.alias, kind=kind, key__in=[key, f"{name}:"])
        numbers = dict(rows.values_list("key", "number"))
        return numbers.get(key, numbers.get(f"{name}:", declared))


def release(claimed: ClaimedTask, messages: Sequence[Any]) -> Any:
    """Return the outcome of a task that a stop has interrupted."""
    return outcome(claimed, Status.READY, has_succeeded=False, keeps_rank=True, inner_state=None)

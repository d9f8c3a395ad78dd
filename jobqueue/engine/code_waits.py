"""AWAITING_CODE: tasks that wait for an executor with code that takes their arguments. No claim reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, F, Min, Q, TextField, When
from django.db.models.functions import Cast

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.claim import Claims
from jobqueue.engine.database import Part, json_from, read_list
from jobqueue.engine.limit_conditions import HAS_BEGUN, INDEXED, IS_WAITING, ready_status
from jobqueue.models.clock import Clock, clock_to_compare, clock_to_store
from jobqueue.values.records import ClaimedBatch, Outcome
from jobqueue.values.states import LimitKind, PoolName, Status

HEAD_TASKS = 2000  # tasks that park() reads, in the order in which they start
MAX_GROUPS = 1000  # in one answer of groups()
FIRST = ("", "")  # before all groups
ENDED_BATCH = 100
CALL = Cast("args", TextField()), Cast("kwargs", TextField()), Cast("inner_state", TextField())

# It counts for its concurrency limit no more, unless it keeps its place between two attempts.
KEEPS_PLACE = Case(When(HAS_BEGUN, count_while_retrying=True, then=True), default=False)
EXPIRES = Case(When(polls=0, then=F("expires_at")), default=None)
Place = tuple[datetime, UUID]  # of a task in its group, in the order in which they began to wait


class ReadyHead(NamedTuple):
    """The next READY tasks of a queue and pool."""

    queue_name: str
    pool: PoolName

    @property
    def status(self) -> Status:
        return Status.READY


class BlockedHead(NamedTuple):
    """The next tasks that are BLOCKED by a key of a limit, of any queue."""

    kind: LimitKind
    key: str

    @property
    def status(self) -> Status:
        return Status.BLOCKED


Head = ReadyHead | BlockedHead


class Group(NamedTuple):
    """The tasks of one queue and name that wait for code."""

    queue_name: str  # of the tasks
    task_type: str  # of the tasks
    since: datetime  # when the first one began to wait


class Verdict(NamedTuple):
    """The reason why tasks wait for code, and for how long."""

    error: str  # JSON text for `errors`
    longest_seconds: float | None  # how long they may wait; None: without end


class StoredCall(NamedTuple):
    """The arguments that code must take, as JSON text."""

    args: str
    kwargs: str
    state: str | None  # of an actor that was polled


class WaitingCall(NamedTuple):
    """A call that waits for code."""

    since: datetime  # when it began to wait
    id: UUID  # of the task
    call: StoredCall  # as stored in the row
    has_limit: bool  # whether its wait ends, apart from the expiry of the task

    @property
    def position(self) -> Place:
        return self.since, self.id


@dataclass(eq=False)
class CodeWaits(Part):
    admissions: Admissions
    claims: Claims

    def begin(self, outcomes: Sequence[Outcome]) -> None:
        """
        Complete the rows of tasks that have become AWAITING_CODE in this transaction.

        wake_at is the end of the longest wait, or of the time in which the task may start.
        """
        for longest in {outcome.wake_after_seconds for outcome in outcomes}:
            rows = self.db.by_ids([result.task_id for result in outcomes if result.wake_after_seconds == longest])
            rows.update(**_columns(longest))
            rows.filter(Q(worker_ids=[]) | Q(rate_key__isnull=False)).update(last_attempted_at=None)
            rows.filter(worker_ids=[]).update(started_at=None)

    def park(
        self,
        heads: Collection[Head],
        may_wait: Callable[[str, str], bool],
        judge: Callable[[str, StoredCall], Verdict | None],
        limit: int = HEAD_TASKS,
    ) -> dict[Head, Counter[str]]:
        """
        Make tasks AWAITING_CODE that this executor has no code for. Return their numbers by head and name.

        The answer lacks heads that were not read because of the limit. may_wait: takes a queue and a name; judge: takes
        the name and the call; returns None for a task that may run here. Each verdict is a statement.
        Locks: the rows, skipping locked ones.
        """
        parked: dict[Head, Counter[str]] = {}
        by_task: dict[UUID, Head] = {}
        for head in heads:
            if limit <= 0:
                break
            tasks = self._ready(head, limit) if isinstance(head, ReadyHead) else self._blocked(head, limit)
            limit -= len(tasks)
            parked[head] = Counter()
            for pk, queue_name, task_type in tasks:
                if may_wait(queue_name, task_type):
                    by_task[pk] = head
        # Without locks: otherwise the claims of other executors would skip tasks that may run.
        calls = self.db.by_ids(by_task).values_list("pk", "task_type", *CALL) if by_task else ()
        judged = [(pk, task_type, judge(task_type, StoredCall(*call))) for pk, task_type, *call in calls]
        waiting = [(pk, task_type, verdict) for pk, task_type, verdict in judged if verdict is not None]
        if not waiting:
            return parked
        with self.db.transaction():
            # With a condition for the status, the planner may read all BLOCKED tasks.
            statuses = dict(self.db.lock(pk for pk, *_ in waiting).values_list("pk", "status"))
            verdicts: dict[Verdict, list[UUID]] = {}
            for pk, task_type, verdict in waiting:
                if statuses.get(pk) == by_task[pk].status:
                    verdicts.setdefault(verdict, []).append(pk)
                    parked[by_task[pk]][task_type] += 1
            for verdict, ids in verdicts.items():
                self._park(verdict, ids)
        return parked

    def _ready(self, head: ReadyHead, limit: int) -> list[tuple[UUID, str, str]]:
        """Return ids, queues and names."""
        rows = self.db.tasks.ready().filter(queue_name=head.queue_name, pool=head.pool)
        rows = rows.order_by("backend", "queue_name", "pool", "rank", "pk")
        return list(rows.values_list("pk", "queue_name", "task_type")[:limit])

    def _blocked(self, head: BlockedHead, limit: int) -> list[tuple[UUID, str, str]]:
        """Return ids, queues and names."""
        rows = self.db.tasks.filter(INDEXED[head.kind], IS_WAITING[head.kind], **{f"{head.kind}_key": head.key})
        return list(rows.order_by("rank", "pk").values_list("pk", "queue_name", "task_type")[:limit])

    def _park(self, verdict: Verdict, ids: Sequence[UUID]) -> None:
        """Make tasks AWAITING_CODE. Those without earlier errors get one that says why."""
        self.db.by_ids(ids).update(
            status=Status.AWAITING_CODE,
            errors=Case(When(errors=[], then=json_from(f"[{verdict.error}]")), default=F("errors")),
            **_columns(verdict.longest_seconds),
        )
        self.admissions.request(ids, are_freed=True)

    def groups(self, after: tuple[str, str] = FIRST) -> list[Group]:
        """Return the next MAX_GROUPS queues and names of tasks that wait for code, in this order. Locks: none."""
        queue_name, task_type = after
        rows = (
            self.db.tasks.awaiting_code()
            .filter(Q(queue_name__gt=queue_name) | Q(queue_name=queue_name, task_type__gt=task_type))
            .values_list("queue_name", "task_type")
            .annotate(since=Min("awaits_code_since"))
        )
        return [Group(*row) for row in rows.order_by("queue_name", "task_type")[:MAX_GROUPS]]

    def calls(
        self, group: Group, limit: int, *, after: Place | None = None, before: Place | None = None
    ) -> list[WaitingCall]:
        """
        Read calls of a group. Locks: none.

        after: those that began to wait later, the first of them first. Otherwise the last ones first; before: those
        that began to wait earlier.
        """
        rows = self.db.tasks.awaiting_code().filter(
            queue_name=group.queue_name, task_type=group.task_type, awaits_code_since__isnull=False
        )
        order = ["backend", "queue_name", "task_type", "awaits_code_since", "pk"]
        if after is not None:
            rows = rows.filter(awaits_code_since__gte=after[0])
            rows = rows.exclude(awaits_code_since=after[0], pk__lte=after[1]).order_by(*order)
        else:
            rows = rows.order_by(*(f"-{name}" for name in order))
            if before is not None:
                rows = rows.filter(awaits_code_since__lte=before[0])
                rows = rows.exclude(awaits_code_since=before[0], pk__gte=before[1])
        waiting = rows.values_list("awaits_code_since", "pk", "wake_at", "expires_at", *CALL)[:limit]
        return [
            WaitingCall(since, pk, StoredCall(*call), wake_at is not None and wake_at != expires_at)
            for since, pk, wake_at, expires_at, *call in waiting
        ]

    def last_errors(self, ids: Collection[UUID]) -> dict[UUID, Any]:
        """Return the last error of tasks; None for a task without any, or with a column that cannot be read."""
        rows = self.db.by_ids(ids).values_list("pk", Cast("errors", TextField()))
        return {pk: next(reversed(read_list(text)), None) for pk, text in rows}

    def end(self, ids: Collection[UUID], limit: int) -> int:
        """
        Make up to `limit` of these tasks READY, or BLOCKED if they have a limit, in the caller's transaction.

        They keep their rank. Return how many. Locks: the rows, skipping locked ones.
        """
        rows = self.db.by_ids(ids).filter(status=Status.AWAITING_CODE).order_by("pk")
        locked = [row.pk for row in self.db.with_lock(rows).only("pk")[:limit]]
        if locked:
            self.db.by_ids(locked).update(
                status=ready_status(),
                wake_at=None,
                awaits_code_since=None,
                counts_while_waiting=Case(When(rate_key__isnull=True, then=False), default=F("counts_while_waiting")),
            )
            self.admissions.request(locked)
        return len(locked)

    def claim_ended(self, executor_id: UUID) -> ClaimedBatch:
        """
        Claim the tasks whose wait has ended before code came. No limit counts this claim.

        Locks: the rows, skipping locked ones.
        """
        ended = self.db.tasks.awaiting_code().filter(wake_at__isnull=False, wake_at__lte=clock_to_compare())
        with self.db.transaction():
            rows = self.db.with_lock(ended.order_by("backend", "wake_at"))
            locked = [row.pk for row in rows.only("pk")[:ENDED_BATCH]]
            if not locked:
                return ClaimedBatch()
            self.db.by_ids(locked).update(
                status=Status.RUNNING,
                claim_number=F("claim_number") + 1,
                executor_id=executor_id,
                wake_at=None,
                awaits_code_since=None,
                claimed_at=Clock(),
            )
            return ClaimedBatch(self.claims.read_claimed(locked))


def _columns(longest_seconds: float | None) -> dict[str, Any]:
    """Return the columns of a task that begins to wait for code."""
    ends_at: Any = EXPIRES
    if longest_seconds is not None:
        expires_first = Q(polls=0, expires_at__lt=clock_to_compare(after=longest_seconds))
        ends_at = Case(When(expires_first, then=F("expires_at")), default=clock_to_store(after=longest_seconds))
    return {"awaits_code_since": Clock(), "wake_at": ends_at, "counts_while_waiting": KEEPS_PLACE}

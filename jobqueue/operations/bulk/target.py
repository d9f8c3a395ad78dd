"""
Bulk actions: change some tasks by id, or all tasks of a selection, in batches.

A selection is read again when the action runs. Its bounds exclude the tasks that entered it after it was counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, reduce
from itertools import chain, islice
from operator import or_
from typing import Annotated, Any
from uuid import UUID

import msgspec
from django.db.models import DateTimeField, Q, QuerySet, Value

from jobqueue.engine import CAP, Count, count, rank_from, read_clock
from jobqueue.models import Task
from jobqueue.operations.backends import backends_on, options_of
from jobqueue.operations.bulk.actions import ACTIONS, BulkAction
from jobqueue.operations.list.selection import Selection
from jobqueue.operations.queries import status_condition
from jobqueue.values.changes import BulkResult
from jobqueue.values.states import FINAL, LIVE, Status

WALKED = 5000  # tasks per page of a walk
MAX_PAGES = 20  # of a walk in one request or poll
MAX_RUNNING = 5000  # tasks excluded by id
BATCH = 1000  # ids per statement
MAX_SINGLE = 100  # up to so many tasks, each is a batch and a log entry of its own: one page of the admin's list
MAX_IN_REQUEST = 1000  # more tasks are changed by a task of the queue
BUDGET_SECONDS = 10.0  # per request
EXAMPLES = 10
UNCHANGED = ("key_taken", "skipped", "busy", "moved")
# The order in which tasks move on, so that one that changes its status during a walk is still found.
WALK = (Status.BLOCKED, Status.SCHEDULED, Status.SUSPENDED, Status.READY, Status.AWAITING_CODE, Status.RUNNING, *FINAL)
# The column in whose order the index of a status is read. For READY tasks, see ReadyPart.
COLUMN_OF: Mapping[str, str] = {**dict.fromkeys(FINAL, "finished_at"), Status.SCHEDULED: "wake_at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a selection at the time it was counted, so that an action later finds the same tasks."""

    upto: UUID  # the id of the newest task
    asked_at: datetime  # the time on the database's clock
    running: Sequence[UUID] = ()  # the tasks that ran then and may return to the selection
    edge: str | None = None  # where the window of the list ended; None: the list has no window
    # of the tasks that the action can change; None: not counted
    number: Annotated[int, msgspec.Meta(ge=0)] | None = None

    @classmethod
    def now(cls, database: str) -> Bounds:
        """Return the bounds of the present tasks."""
        # The newest of all tasks, because finding the newest match would need a search instead of one index entry.
        newest = Task.objects.using(database).order_by("-pk").values_list("pk", flat=True).first()
        return cls(upto=newest or UUID(int=0), asked_at=read_clock(database))

    @classmethod
    def parse(cls, text: str) -> Bounds | None:
        """Parse the bounds in a form's field. Return None if they are missing or invalid."""
        try:
            return msgspec.json.decode(text, type=cls)
        except ValueError:
            return None

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def condition(self) -> Q:
        """Return the condition for tasks that were there, and that have not ended since."""
        return Q(pk__lte=self.upto) & (Q(finished_at__isnull=True) | Q(finished_at__lte=self.asked_at))

    def make_condition(self, status: Status) -> Q:
        """Return the condition for tasks of one status, which the index of the status can use."""
        return Q(finished_at__lte=self.asked_at) if status in FINAL else Q(pk__lte=self.upto)

    def unmoved(self, status: str, backend: str) -> Q:
        """Return the condition for live tasks that have had this status since."""
        has_not_run = Q(last_attempted_at__isnull=True) | Q(last_attempted_at__lte=self.asked_at)
        condition = ~Q(pk__in=self.running) & has_not_run if self.running else has_not_run
        if status == Status.READY:
            moment = Value(self.asked_at, DateTimeField())
            condition &= Q(rank__lte=rank_from(moment, options_of(backend).aging))
        return condition


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkPosition:
    """The end of a walk so far: all parts before, and in this part the pages up to `after`."""

    part: int = 0  # the index of the part
    after: str | None = None  # the end of the last whole page; None: at the start of the part
    # the end of the page that has begun; empty at the end of the part; None: no page has begun
    until: str | None = None
    pk: UUID | None = None  # the last task of that page that was handled; None: none of it was


@dataclass(frozen=True)
class Target:
    """The tasks of a selection that an action can change, within the bounds."""

    selection: Selection
    action: BulkAction
    bounds: Bounds

    @classmethod
    def of(cls, selection: Selection, action: BulkAction) -> Target:
        """Count what the action can change now, and take the bounds of it."""
        bounds = Bounds.now(selection.database)
        running: Sequence[UUID] = ()
        named = {*LIVE} & {*selection.statuses}
        if named and Status.RUNNING not in named:  # a running task may return to the selection
            others = replace(selection, filters={**selection.filters, "status": Status.RUNNING}, is_edge_known=True)
            running = list(others.rows.order_by().values_list("pk", flat=True)[:MAX_RUNNING])
        bounds = replace(bounds, running=running, edge=selection.edge)
        target = cls(selection, action, bounds)
        return replace(target, bounds=replace(bounds, number=target._count()))

    def _count(self) -> int:
        """Count without the bounds, because the indexes do not contain their columns. This is the moment of them."""
        selection = self.selection
        statuses = self.statuses
        if not statuses:
            return 0
        if selection.is_whole and selection.has_unindexed_filter:  # no statement reads more than a page
            return sum(map(len, self.walk(WALKED)))
        if isinstance(selection.keys, list) and len(selection.keys) <= CAP:
            keys = selection.keys
            return sum(
                selection.tasks.filter(pk__in=keys[start : start + BATCH], status__in=statuses).count()
                for start in range(0, len(keys), BATCH)
            )
        if selection.status:
            number = selection.number
            return selection.rows.order_by().count() if number.is_about else number.number
        return sum(selection.rows.filter(status=status).order_by().count() for status in statuses)

    @cached_property
    def other(self) -> Count:
        """The tasks of the selection in other states."""
        if self.selection.status in self.action.statuses:
            return Count()
        return count(self.selection.rows.exclude(status__in=self.action.statuses).order_by())

    @cached_property
    def examples(self) -> list[UUID]:
        """The first of the tasks, in the order of the list."""
        rows = self.selection.tasks
        ids: list[UUID] = []
        for start in range(0, CAP, BATCH):
            keys = list(self.selection.keys[start : start + BATCH])
            matching = {*rows.filter(pk__in=keys, status__in=self.action.statuses).values_list("pk", flat=True)}
            ids += [pk for pk in keys if pk in matching][: EXAMPLES - len(ids)]
            if len(ids) == EXAMPLES or len(keys) < BATCH or self.selection.status:
                break
        return ids

    # --- the walk

    def walk(self, size: int) -> Iterator[list[UUID]]:
        """Yield the tasks, at most `size` at a time."""
        position: WalkPosition | None = WalkPosition()
        while position is not None:
            keys, position = self.take(position, size)
            if keys:
                yield keys

    def take(self, position: WalkPosition, size: int) -> tuple[list[UUID], WalkPosition | None]:
        """
        Return up to `size` of the tasks after a position, and the position behind them; None at the end.

        Each page is a range of the column in whose order the index of its status is read. So no statement reads more
        than a page, except of tasks that have one value in it. It may return none before the end, after MAX_PAGES.
        """
        taken: list[UUID] = []
        for _page in range(MAX_PAGES):
            if position.part >= len(self._parts):
                return taken, None
            part = self._parts[position.part]
            if position.until is None:
                position = replace(position, until=part.end_of_page(position.after), pk=None)
            page = part.page(position.after, position.until or "")
            ids = sorted(page.filter(self._condition).values_list("pk", flat=True))
            left = [pk for pk in ids if position.pk is None or pk > position.pk]
            room = size - len(taken)
            taken += left[:room]
            if len(left) > room:
                return taken, replace(position, pk=taken[-1])
            position = (
                replace(position, after=position.until, until=None)
                if position.until
                else WalkPosition(part=position.part + 1)
            )
            if len(taken) == size or (taken and not isinstance(part, ReadyPart)):
                break
        return taken, position if position.part < len(self._parts) else None

    @cached_property
    def _condition(self) -> Q:
        selection, bounds = self.selection, self.bounds
        condition = selection.condition & bounds.condition & Q(status__in=self.action.statuses)
        for status in {*LIVE} & {*selection.statuses}:
            of_backends = (
                Q(backend=backend) & bounds.unmoved(status, backend) for backend in backends_on(selection.database)
            )
            condition &= ~Q(status=status) | reduce(or_, of_backends)
        return condition

    @cached_property
    def _parts(self) -> list[TargetPart | ReadyPart]:
        selection = self.selection
        if selection.is_group or selection.search_text or (selection.edge is not None and not selection.status):
            return [TargetPart(selection.tasks.filter(selection.condition, self.bounds.condition), "pk")]
        return [
            self._make_part(status, backend)
            for backend in backends_on(selection.database)
            if selection.filters.get("backend", backend) == backend
            for status in self.statuses
        ]

    def _make_part(self, status: Status, backend: str) -> TargetPart | ReadyPart:
        tasks = self.selection.tasks.filter(status_condition(status), backend=backend)
        if status == Status.READY and "queue" in self.selection.filters:
            tasks = tasks.filter(queue_name=self.selection.filters["queue"])
        rows = tasks.filter(self.bounds.make_condition(status), self.selection.in_window)
        return ReadyPart(rows, tasks) if status == Status.READY else TargetPart(rows, COLUMN_OF.get(status, "pk"))

    @property
    def statuses(self) -> list[Status]:
        """The statuses of the tasks, in the order of the walk."""
        return [
            status for status in WALK if status in self.action.statuses and status in (self.selection.statuses or WALK)
        ]

    # --- as JSON

    def as_json(self) -> dict[str, Any]:
        return {
            "selection": self.selection.as_json(),
            "action": self.action.name,
            "bounds": msgspec.to_builtins(self.bounds),
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Target:
        """Read the JSON of as_json(). Raises KeyError or ValueError if it is of another form."""
        bounds = msgspec.convert(value["bounds"], Bounds)
        return cls(Selection.parse(value["selection"]), ACTIONS[value["action"]], bounds)


@dataclass(frozen=True)
class TargetPart:
    """Rows to walk through in the order of one column."""

    rows: QuerySet[Task]
    column: str

    def end_of_page(self, after: str | None) -> str:
        """Return the value at the end of the page that follows `after`; empty if it is the last page."""
        values = self._following(after).order_by(self.column).values_list(self.column, flat=True)
        value = values[WALKED - 1 : WALKED].first()
        return value.isoformat() if isinstance(value, datetime) else str(value or "")

    def page(self, after: str | None, until: str) -> QuerySet[Task]:
        rows = self._following(after)
        return rows.filter(**{f"{self.column}__lte": until}) if until else rows

    def _following(self, after: str | None) -> QuerySet[Task]:
        return self.rows.filter(**{f"{self.column}__gt": after}) if after else self.rows


class EndOfPage(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page of READY tasks."""

    queue_name: str
    pool: str
    rank: datetime | None  # None: all tasks of the queue and the pool

    @classmethod
    def parse(cls, text: str | None) -> EndOfPage | None:
        return msgspec.json.decode(text, type=cls) if text else None

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True)
class ReadyPart:
    """READY tasks. Their index begins with the queue and the pool, so a page has tasks of one queue and pool."""

    rows: QuerySet[Task]
    entries: QuerySet[Task]  # of the index: the rows and others, among which the next queue and pool are found

    def end_of_page(self, after: str | None) -> str:
        end = EndOfPage.parse(after)
        if end is None or end.rank is None:
            end = self._next_group(end)
            if end is None:
                return ""
        rows = self.page(after, str(EndOfPage(end.queue_name, end.pool, None)))
        ranks = rows.order_by("backend", "queue_name", "pool", "rank").values_list("rank", flat=True)
        return str(EndOfPage(end.queue_name, end.pool, ranks[WALKED - 1 : WALKED].first()))

    def page(self, after: str | None, until: str) -> QuerySet[Task]:
        begin, end = EndOfPage.parse(after), EndOfPage.parse(until)
        if end is None:
            return self.rows.none()
        rows = self.rows.filter(queue_name=end.queue_name, pool=end.pool)
        if begin is not None and begin.rank is not None:  # within the same queue and pool
            rows = rows.filter(rank__gt=begin.rank)
        return rows if end.rank is None else rows.filter(rank__lte=end.rank)

    def _next_group(self, after: EndOfPage | None) -> EndOfPage | None:
        entries = self.entries.order_by("backend", "queue_name", "pool", "rank").values_list("queue_name", "pool")
        if after is None:
            group = entries.first()
        else:
            of_queue = entries.filter(queue_name=after.queue_name, pool__gt=after.pool)
            group = of_queue.first() or entries.filter(queue_name__gt=after.queue_name).first()
        return EndOfPage(*group, None) if group else None


class BulkRun:
    """
    An action on batches of tasks.

    result: the sum of their results; None before the first one. changed_ids: the tasks that were changed, if each was a
    batch of its own. moved: how many of the counted tasks were not found again. unreached: for how many locks left no
    time.
    """

    def __init__(self, action: BulkAction, backend: str | None = None) -> None:
        self.action, self.backend = action, backend
        self.result: BulkResult | None = None
        self.changed_ids: list[UUID] = []
        self.moved = self.unreached = 0

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the result that the sentences have, and of the tasks that have moved."""
        numbers = self.result.numbers if self.result else {}
        displayed = {name: numbers.get(name, 0) for name in self.action.sentences}
        displayed["busy"] += self.unreached
        return {**displayed, "moved": self.moved} if self.moved else displayed

    @property
    def total(self) -> int:
        return sum(self.numbers.values())

    @property
    def affected(self) -> int:
        return sum(number for name, number in self.numbers.items() if name not in UNCHANGED)

    def perform(self, ids: Sequence[UUID]) -> None:
        before = self.affected
        result = self.action.perform(ids, self.backend)
        self.result = result if self.result is None else self.result + result
        if len(ids) == 1 and self.affected > before:
            self.changed_ids.append(ids[0])

    def __str__(self) -> str:
        return self.action.describe(self.numbers)


def perform_ids(action: BulkAction, ids: Sequence[UUID]) -> BulkRun:
    """Perform an action on tasks by id. Tasks that are left when locks have used up the time count as busy."""
    run = BulkRun(action)
    deadline = time.monotonic() + BUDGET_SECONDS
    size = 1 if len(ids) <= MAX_SINGLE else BATCH
    for start in range(0, len(ids), size):
        if time.monotonic() > deadline and run.result is not None:
            run.unreached = len(ids) - start
            break
        run.perform(ids[start : start + size])
    return run


def perform_now(target: Target) -> BulkRun:
    """
    Perform an action on all tasks of a target, as many as were counted.

    The engine checks each task's state again, so tasks that executors have changed since count as skipped.
    """
    number = target.bounds.number or 0
    ids = list(islice(chain.from_iterable(target.walk(WALKED)), number))
    run = perform_ids(target.action, ids)
    run.moved = number - len(ids)
    return run

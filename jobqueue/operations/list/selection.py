"""
Select the tasks that a list shows and an action changes: filters and a search, as texts for an address or a task.

A list first finds the keys of a page, then reads their rows.

| strategy | used if | what is read |
|---|---|---|
| index order | one index has all filters and the order of the list | the keys up to the page |
| all keys | another order: most live statuses, parent, schedule, limit, tag, key | CAP keys, sorted here |
| window | a filter has no index | the newest WINDOW tasks, or WINDOW_OF_STATUS of the status; the page says so |

A list with more than CAP keys falls back from the second strategy to the others. At 3 million rows, walking the primary
key to find a rare status took 0.5 to 0.7 s, and no statistics kept the planner from it. So each status is read in the
order of its own index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.db.models import BooleanField, F, Q, QuerySet, Value
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware, make_aware, make_naive
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.engine import CAP, INDEXED, Count, count_or_estimate, tasks_of_limit
from jobqueue.models import ScheduleTick, Task, TaskQuerySet
from jobqueue.operations.backends import backends_on
from jobqueue.operations.formatting import shortened
from jobqueue.operations.limits import Key
from jobqueue.operations.list.failures import read_titles
from jobqueue.operations.list.search import NOTHING, Search, ids_with_key
from jobqueue.operations.payloads import JsonFunc
from jobqueue.operations.queries import count_of_status, entries_of, status_condition
from jobqueue.operations.workflows import workflow_codes
from jobqueue.values.batches import BATCH
from jobqueue.values.ids import first_id
from jobqueue.values.journal import EntryKind
from jobqueue.values.kinds import EARLIEST_YEAR, LATEST_YEAR
from jobqueue.values.states import FINAL, Status

# The rows of one status are scattered: 58,000 FAILED tasks are on 58,000 pages, which take 0.35 s. The newest
# 100,000 tasks are neighbours and take 0.03 s.
WINDOW = 100_000
WINDOW_OF_STATUS = 10_000
CAUSES_NAMED = 3  # in the sentence about a search
YEARS = range(EARLIEST_YEAR, LATEST_YEAR + 1)  # of times that tasks may have

# Filters by the row that tasks belong to, the first one first.
GROUPS = ("batch", "parent", "schedule", "limit", "tag")
WITH_STATUS = {"limit": ("status",), "batch": ("status",)}  # by group: the other filters that its index contains
ENDED = ("ended_since", "ended_until")  # of one final status
ENQUEUED = ("enqueued_since", "enqueued_until")  # of all tasks: ids begin with the time
KIND_WORKFLOW, KIND_BATCH = "workflow", "batch"  # values of the filter by kind
SLACK = timedelta(minutes=5)  # between the clock of an id and the database's
# By status: the other filters that its index contains.
ALSO_INDEXED: dict[str, tuple[str, ...]] = {Status.FAILED: ("task", "cause"), Status.SUSPENDED: ("backend",)}
ORDER: dict[str, str] = {**dict.fromkeys(FINAL, "-finished_at"), Status.SCHEDULED: "wake_at"}


def to_id(text: str | None) -> int:
    """Return the number of a row; 0, which no row has, for other texts."""
    is_number = text and text.isascii() and text.isdigit() and len(text) < 19  # fits the column
    return int(text) if text and is_number else 0


def to_uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text or "")
    except ValueError:
        return None


def tasks_of_parent(text: str, database: str) -> Q:
    parent = to_uuid(text)
    return Q(parent_id=parent) if parent else NOTHING


def unsuccessful_members(text: str, database: str) -> Q:
    """Return the condition for the members of a batch that failed or were cancelled. Its journal names them."""
    batch = to_uuid(text)
    if batch is None:
        return NOTHING
    return Q(pk__in=entries_of(database, batch).filter(kind=EntryKind.MEMBER).values("child_id"))


def tasks_of_schedule(text: str, database: str) -> Q:
    """Return the condition for the newest CAP tasks of a schedule. The ticks have an index of all of them."""
    ticks = ScheduleTick.objects.using(database).filter(schedule_id=to_id(text), task_id__isnull=False)
    return Q(pk__in=ticks.order_by("-tick_at").values("task_id")[: CAP + 1])


def tasks_with_statuses(text: str, database: str) -> Q:
    return reduce(or_, map(status_condition, text.splitlines()))


def tasks_with_names(text: str, database: str) -> Q:
    """Return the condition for names of tasks; one that begins with a dot is the end of a name."""
    names = text.splitlines()
    ends = (Q(task_type__endswith=name) for name in names if name.startswith("."))
    return reduce(or_, ends, column_is_in("task_type", [name for name in names if not name.startswith(".")]))


def tasks_of_kind(text: str, database: str) -> Q:
    """Return the condition for the workflows that this process knows, or for batches."""
    if text == KIND_BATCH:
        return Q(task_type=BATCH)
    return Q(task_type__in=workflow_codes()) if text == KIND_WORKFLOW else NOTHING


def column_is_in(column: str, values: Sequence[str]) -> Q:
    return Q(**({column: values[0]} if len(values) == 1 else {f"{column}__in": values}))


def tasks_of_executor(text: str, database: str) -> Q:
    """Return the condition for the tasks that an executor runs or has run. text: its id."""
    executor = to_uuid(text)
    return Q(executor_id=executor) | Q(worker_ids__icontains=str(executor)) if executor else NOTHING


def at(text: str) -> datetime | None:
    """Parse a time; without a zone, it is in the user's. Return None if it is invalid, or not in a year of YEARS."""
    try:
        moment = parse_datetime(text)
        if moment is None or moment.year not in YEARS:
            return None
        if is_aware(moment) == settings.USE_TZ:
            return moment
        return make_aware(moment) if settings.USE_TZ else make_naive(moment)
    except (ValueError, OverflowError):
        return None


def time_filter(lookup: str) -> Callable[[str, str], Q]:
    def tasks_of_time(text: str, database: str) -> Q:
        moment = at(text)
        return NOTHING if moment is None else Q(**{lookup: moment})

    return tasks_of_time


class HasTag(JsonFunc):
    """Whether the tags of a row contain a text."""

    output_field = BooleanField()
    template, arg_joiner = "(%(expressions)s::text))", " @> to_jsonb("
    sqlite = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sqlite(compiler, connection, arg_joiner=") WHERE value = ", **extra)


def has_tag(text: str) -> Q:
    return Q(HasTag(F("tags"), Value(text)))


def tasks_of_limit_key(text: str, database: str) -> Q:
    """Return the condition for the tasks that a limit counts, or that wait for it. text: its kind and a key."""
    key = Key.parse(text)
    return NOTHING if key is None else INDEXED[key.kind] & tasks_of_limit(key.kind, key.stored)


FILTERS: Mapping[str, Callable[[str, str], Q]] = {
    "status": tasks_with_statuses,
    "queue": lambda text, _: column_is_in("queue_name", text.splitlines()),
    "task": tasks_with_names,
    "kind": tasks_of_kind,
    "backend": lambda text, _: Q(backend=text),
    "cause": lambda text, _: column_is_in("cause", text.split(",")),
    "parent": tasks_of_parent,
    "batch": unsuccessful_members,
    "schedule": tasks_of_schedule,
    "limit": tasks_of_limit_key,
    "tag": lambda text, _: has_tag(text),
    "executor": tasks_of_executor,
    "enqueued_since": time_filter("enqueued_at__gte"),
    "enqueued_until": time_filter("enqueued_at__lte"),
    "ended_since": time_filter("finished_at__gte"),
    "ended_until": time_filter("finished_at__lte"),
}


@dataclass(frozen=True)
class Selection:
    """
    Tasks of one database that match filters and a search.

    It has more than 20 methods because the strategy to read a list depends on all of its filters together.
    """

    database: str  # the alias in DATABASES
    # the values by the names in FILTERS. Several statuses, queues or tasks are lines of a value; causes have commas
    filters: Mapping[str, str] = field(default_factory=dict)
    search_text: str = ""  # as it was typed; empty: no search
    known_edge: str | None = None  # the edge that a page has shown, if is_edge_known; None: that page had no edge
    is_edge_known: bool = False  # a page has shown the edge
    with_payload: bool = True  # whether the reader may see arguments and errors, and so search them
    is_whole: bool = False  # search all tasks, not only those of a window

    @cached_property
    def tasks(self) -> TaskQuerySet:
        """The tasks of the backends in TASKS."""
        # With one backend this is an equality, as the indexes on `backend` need.
        return Task.objects.using(self.database).filter(backend__in=backends_on(self.database))

    @cached_property
    def search(self) -> Search:
        if "cause" in self.filters and not self.with_payload:  # its hash would tell whether a guess is right
            problem = _("You lack the permission to see messages of errors, so causes were not searched.")
            return Search(ids=NOTHING, problem=problem)
        return Search.parse(self.search_text, self.database, with_payload=self.with_payload)

    @property
    def description(self) -> str:
        """The searched text: a search for an error or a tag has become a filter. Empty if the search has a problem."""
        if self.search.problem:
            return ""
        return " ".join(filter(None, [self._searched_causes, self._searched_tag, self.search.description]))

    @property
    def _searched_causes(self) -> str:
        causes = self.filters["cause"].split(",") if "cause" in self.filters else []
        if not causes:
            return ""
        titles = read_titles(backends_on(self.database), causes[:CAUSES_NAMED])
        names = "; ".join(f"“{shortened(titles.get(cause, cause))}”" for cause in causes[:CAUSES_NAMED])
        if len(causes) > CAUSES_NAMED:
            text = _("Searched: tasks with one of %(number)s errors, such as %(errors)s.")
        else:
            text = ngettext(
                "Searched: tasks with the error %(errors)s.",
                "Searched: tasks with one of %(number)s errors: %(errors)s.",
                len(causes),
            )
        return text % {"number": len(causes), "errors": names}

    @property
    def _searched_tag(self) -> str:
        return _("Searched: tasks with the tag “%(tag)s”.") % self.filters if "tag" in self.filters else ""

    @property
    def statuses(self) -> Sequence[str]:
        """The statuses in the filter; none: all."""
        return self.filters.get("status", "").splitlines()

    @property
    def status(self) -> str:
        """The status in the filter, if it has one."""
        return self.statuses[0] if len(self.statuses) == 1 else ""

    @property
    def condition(self) -> Q:
        """The condition for a task of the selection."""
        condition = self.search.condition
        if self.search.key is not None and len(self.ids_of_key) <= CAP:
            condition &= Q(pk__in=self.ids_of_key)
        for name, text in self.filters.items():
            condition &= FILTERS[name](text, self.database)
        return condition & self.in_window

    @cached_property
    def ids_of_key(self) -> list[UUID]:
        return ids_with_key(self.tasks, self.search.key or "", CAP + 1)

    @property
    def in_window(self) -> Q:
        if self.edge is None:
            return Q()
        return Q(**{f"{self.column}__{'gte' if self.order.startswith('-') else 'lte'}": self.edge})

    @cached_property
    def rows(self) -> TaskQuerySet:
        """The tasks of the selection, in the order of the list."""
        return self.tasks.filter(self.condition).order_by(self.order)

    @property
    def order(self) -> str:
        return ORDER.get(self.status, "-pk")

    @property
    def column(self) -> str:
        return self.order.removeprefix("-")

    @cached_property
    def has_one_backend(self) -> bool:
        return "backend" in self.filters or len(backends_on(self.database)) == 1

    @cached_property
    def indexed(self) -> dict[str, Q]:
        """The filters that one index serves, with their conditions: the most selective one, and what else it has."""
        group = self.group
        names: set[str] = {"backend"} if len(backends_on(self.database)) == 1 else set()
        if group:
            names |= {group, *WITH_STATUS.get(group, ())}
        elif self.status:
            names |= {"status", *ALSO_INDEXED.get(self.status, ()), *(ENDED if self.status in FINAL else ())}
            if any(name.startswith(".") for name in self.filters.get("task", "").splitlines()):
                names.discard("task")
        else:
            names |= {*ENQUEUED}
        return {
            name: FILTERS[name](text, self.database) & (_range_of_ids(name, text) if name in ENQUEUED else Q())
            for name, text in self.filters.items()
            if name in names
        }

    @cached_property
    def index_condition(self) -> Q:
        """The condition that one index serves."""
        return reduce(and_, self.indexed.values(), self.search.ids)

    @property
    def has_unindexed_filter(self) -> bool:
        return bool(self.filters.keys() - self.indexed.keys() or self.search.rest)

    @cached_property
    def group(self) -> str | None:
        """The filter whose index finds the tasks. Beside a status, the index of a tag with many tasks is no help."""
        group = next((name for name in GROUPS if name in self.filters), None)
        if group == "tag" and self.status and len(read_keys(self.tasks.filter(has_tag(self.filters["tag"])))) > CAP:
            return None
        return group

    @property
    def is_group(self) -> bool:
        """Whether the tasks belong to one row, or have one tag."""
        return self.group is not None

    @property
    def needs_all_keys(self) -> bool:
        """Whether no index has the filter in the order of the list."""
        has_causes = "," in self.filters.get("cause", "")
        if (
            self.is_group
            or has_causes
            or self.status
            in (
                Status.READY,
                Status.BLOCKED,
                Status.AWAITING_CODE,
                Status.RUNNING,
            )
        ):
            return True
        return self.status == Status.SUSPENDED and not self.has_one_backend

    @cached_property
    def all_keys(self) -> list[UUID] | None:
        """All keys of the index condition if the list needs them and there are at most CAP."""
        if not self.needs_all_keys:
            return None
        keys = read_keys(self.tasks.filter(self.index_condition))
        return keys if len(keys) <= CAP else None

    @cached_property
    def edge(self) -> str | None:
        """The value at the end of the window. A filter without an index searches only these newest rows."""
        if self.is_edge_known or self.is_whole:
            return self.known_edge
        if not self.has_unindexed_filter or self.search.key is not None or self.all_keys is not None:
            return None
        # An index without the backend answers alone only if the query ignores the backend.
        has_backend = self.status and not (self.status == Status.FAILED and "task" in self.filters)
        rows = self.tasks if has_backend else Task.objects.using(self.database)
        ordered = rows.filter(self.index_condition).order_by(self.order).values_list(self.column, flat=True)
        value = ordered[self.window_size : self.window_size + 1].first()
        return value.isoformat() if isinstance(value, datetime) else value and str(value)

    @property
    def window_size(self) -> int:
        return WINDOW if self.status in ("", Status.SUCCESSFUL) else WINDOW_OF_STATUS

    @property
    def window(self) -> Count | None:
        """Return how many rows were searched; None if all were."""
        return None if self.edge is None else Count(self.window_size)

    @cached_property
    def keys(self) -> QuerySet[Any, UUID] | list[UUID]:
        """
        The keys of the list in its order: at most CAP + 1 of them in a list, or a query.

        OFFSET over rows instead of keys would unpack the errors of every skipped row.
        """
        if self.search.key is not None and len(self.ids_of_key) <= CAP:
            return sorted(read_keys(self.rows), reverse=True)
        if self.all_keys is not None:
            return sorted(read_keys(self.rows) if self.has_unindexed_filter else self.all_keys, reverse=True)
        rows = self.rows.values_list("pk", flat=True)
        return list(rows[: CAP + 1]) if self.has_unindexed_filter else rows

    @cached_property
    def number(self) -> Count:
        """Return how many tasks the selection has: exact in a window and up to EXACT, else an estimate."""
        if isinstance(self.keys, list) and len(self.keys) <= CAP:
            return Count(len(self.keys))
        if self.edge is not None:
            return Count(self.rows.order_by().count())
        is_of_status = self.status in {*Status} and self.filters.keys() <= {"status", "backend"}
        if is_of_status and not (self.search_text or self.has_unindexed_filter):
            return count_of_status(self.tasks.filter(self._backend), Status(self.status))
        return count_or_estimate(self.rows, exact=CAP if self.group == "tag" else 0)  # it has to read the rows

    @property
    def _backend(self) -> Q:
        return Q(backend=self.filters["backend"]) if "backend" in self.filters else Q()

    # --- as text

    @property
    def query(self) -> str:
        """The query of an address of the admin's list."""
        return urlencode({**self.filters, **({"q": self.search_text} if self.search_text else {})})

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that parse() reads, with the edge of the window."""
        return {
            "database": self.database,
            "filters": dict(self.filters),
            "search": self.search_text,
            "edge": self.edge,
            "with_payload": self.with_payload,
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Selection:
        """Read the JSON of as_json(). Raises KeyError for an unknown filter."""
        filters = {name: str(text) for name, text in value["filters"].items()}
        if unknown := filters.keys() - FILTERS.keys():
            raise KeyError(f"unknown filters: {', '.join(sorted(unknown))}")
        return cls(
            value["database"],
            filters,
            value.get("search", ""),
            known_edge=value.get("edge"),
            is_edge_known=True,
            with_payload=value["with_payload"],
        )


def _range_of_ids(name: str, text: str) -> Q:
    """Return the range of ids for a filter by time of enqueue."""
    moment = at(text)
    if moment is None:
        return NOTHING
    if name.endswith("since"):
        return Q(pk__gte=first_id(moment - SLACK))
    return Q(pk__lt=first_id(moment + SLACK))


def read_keys(rows: QuerySet[Task]) -> list[UUID]:
    """Read at most CAP + 1 keys in the order of an index."""
    return list(rows.order_by().values_list("pk", flat=True)[: CAP + 1])

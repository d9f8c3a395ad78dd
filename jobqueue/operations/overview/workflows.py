"""
Live workflows: which run on which version of the code, and what they wait for. And the findings about them.

Each statement reads the first tasks of a status by its index, so a backlog of other tasks costs no more. A task is a
workflow if code declares it as one, or if its state is that of a workflow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any
from uuid import UUID

from django.core import checks
from django.db.models import Count as CountOf
from django.db.models import F, OuterRef, Q, QuerySet, Subquery, TextField
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.declarations.replay import MAX_ENTRIES
from jobqueue.engine import CAP, Count, Engine, clock_to_compare
from jobqueue.models import LIVE, InboxMessage, JournalEntry
from jobqueue.operations.formatting import either
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.stats import BackendStats
from jobqueue.operations.payloads import JsonFunc
from jobqueue.operations.queries import ORDER
from jobqueue.operations.workflows import workflow_codes
from jobqueue.values.journal import EntryKind, EntryStatus
from jobqueue.values.states import Status
from jobqueue.values.text import number_text

MAX_GROUPS = 500
CHECKED = 1000  # workflows whose journal `doctor` looks into
ENTRIES_READ = 20_000  # of children that workflows wait for
NEAR_LIMIT = MAX_ENTRIES * 8 // 10
IDLE_SECONDS = 60.0  # the sweep delivers the end of a child sooner
MAX_NAMES = 10  # of findings
IDS_SHOWN = 3


class StateMember(JsonFunc):
    """A member of the state of a task as text; NULL if there is none."""

    output_field = TextField()
    template = "(%(expressions)s #>> '{%(path)s}')"
    sqlite = "JSON_EXTRACT(%(expressions)s, '$.%(dots)s')"

    def __init__(self, *path: str) -> None:
        super().__init__(F("inner_state"), path=",".join(path), dots=".".join(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowGroup:
    """Workflows of one name that run on the same version of the code, and wait for the same."""

    task_type: str  # of the workflows
    status: Status  # of the workflows
    code: str  # the version of the code that ran last; empty: none ran yet
    wait: str  # what they wait for; empty: nothing
    count: Count  # of the workflows

    @property
    def is_current(self) -> bool:
        """Whether this process has the same version."""
        return bool(self.code) and workflow_codes().get(self.task_type) == self.code

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("task_type", "status", "code", "wait", "is_current")}
        return {**values, "number": self.count.number, "is_more": self.count.is_more}


def read_workflows(engine: Engine, statuses: Collection[Status] = tuple(map(Status, LIVE))) -> list[WorkflowGroup]:
    """Count the live workflows, among the first CAP tasks of each status."""
    groups: list[WorkflowGroup] = []
    for status in statuses:
        first = engine.db.tasks.filter(status=status).order_by(*ORDER[status])[: CAP + 1]
        is_more = engine.db.tasks.filter(status=status)[: CAP + 1].count() > CAP
        rows = _workflows(engine, Q(pk__in=first.values("pk")))
        names = ("task_type", "code", "kind", "types")
        counted = rows.values(*names).annotate(number=CountOf("pk")).order_by("-number", *names)[:MAX_GROUPS]
        groups += [
            WorkflowGroup(
                task_type=row["task_type"],
                status=status,
                code=row["code"] or "",
                wait=_describe(row["kind"], row["types"]),
                count=Count(row["number"], is_more=is_more),
            )
            for row in counted
        ]
    return sorted(groups, key=lambda group: (group.task_type, group.code, group.status, group.wait))


def _workflows(engine: Engine, condition: Q) -> QuerySet[Any]:
    """Return the workflows among some tasks, with members of their states."""
    members = {
        "code": StateMember("code"),
        "kind": StateMember("waiting", "kind"),
        "types": StateMember("waiting", "types"),
    }
    rows = engine.db.tasks.filter(condition).annotate(**members)
    return rows.filter(Q(task_type__in=workflow_codes()) | Q(code__isnull=False))


def _describe(kind: str | None, types: str | None) -> str:
    match kind:
        case None:
            return ""
        case "receive" if names := json.loads(types or "[]"):
            return either(names)
        case "receive":
            return _("any message")
        case "children":
            return _("children")
        case "sleep":
            return _("a time")
        case "retry":
            return _("the retry of a step")
    return kind


def workflow_findings(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find workflows that cannot go on: without code, waiting for children that are gone, or near the limit."""
    if not any(stats.totals[status] for status in (Status.SUSPENDED, Status.READY, Status.RUNNING)):
        return
    yield from _without_code(engine, stats)
    suspended = engine.db.tasks.filter(status=Status.SUSPENDED).order_by(*ORDER[Status.SUSPENDED])[: CAP + 1]
    rows = _workflows(engine, Q(pk__in=suspended.values("pk")))
    yield from _endless(engine, rows)
    yield from _long_journals(engine, rows)


def _without_code(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find suspended workflows that no running executor has the code of. When they wake, they await code."""
    if not stats.alive:
        return  # another check says so
    groups = [group for group in read_workflows(engine, [Status.SUSPENDED]) if group.code]
    executors = engine.db.executors.filter(pk__in=[executor.row.pk for executor in stats.alive])
    with_code = (
        {name for names in executors.values_list("task_types", flat=True) for name in names} if groups else set()
    )
    numbers: dict[str, Count] = {}
    for group in groups:
        if group.task_type not in with_code:
            numbers[group.task_type] = numbers.get(group.task_type, Count()) + group.count
    for name, number in list(numbers.items())[:MAX_NAMES]:
        text = ngettext(
            "Backend %(backend)s: no running executor has the code of %(number)s waiting workflow %(task)s.",
            "Backend %(backend)s: no running executor has the code of %(number)s waiting workflows %(task)s.",
            number.number,
        ) % {"backend": engine.alias, "number": number, "task": name}
        yield checks.Warning(
            text,
            hint=_("Deploy the code until they have ended, or terminate them: %(command)s")
            % {"command": f"manage.py jobqueue list --status SUSPENDED --task {quote(name)}"},
            obj=AdminTarget("task", {"status": Status.SUSPENDED, "task": name}),
        )


def _endless(engine: Engine, rows: QuerySet[Any]) -> Iterator[checks.CheckMessage]:
    """Find workflows that wait without a timeout for children that are gone, or whose end was lost."""
    idle = rows.filter(
        kind="children", wake_at__isnull=True, last_attempted_at__lt=clock_to_compare(after=-IDLE_SECONDS)
    )
    waiting = list(idle.order_by().values_list("pk", flat=True)[:CHECKED])
    if not waiting:
        return
    entries = JournalEntry.objects.using(engine.database).filter(
        task_id__in=waiting, kind=EntryKind.SPAWN, status=EntryStatus.WAITING
    )
    children: dict[Any, UUID] = dict(entries.values_list("child_id", "task_id")[:ENTRIES_READ])
    live = engine.db.tasks.filter(pk__in=list(children), finished_at__isnull=True).values_list("pk", flat=True)
    unread = InboxMessage.objects.using(engine.database).filter(task_id__in=waiting, consumed_at__isnull=True)
    hopeful = {children[pk] for pk in live} | {*unread.values_list("task_id", flat=True)}
    if len(children) < ENTRIES_READ and (stuck := [pk for pk in waiting if pk not in hopeful]):
        text = ngettext(
            "Backend %(backend)s: nothing can end the wait of %(number)s workflow, because its children are gone: "
            "%(ids)s.",
            "Backend %(backend)s: nothing can end the waits of %(number)s workflows, because their children are gone: "
            "%(ids)s.",
            len(stuck),
        )
        yield checks.Error(
            text % _values(engine, stuck),
            hint=_("Give the results of the children, rewind the workflow, or cancel it."),
            obj=AdminTarget("task", pk=stuck[0]),
        )


def _long_journals(engine: Engine, rows: QuerySet[Any]) -> Iterator[checks.CheckMessage]:
    """Find journals near their limit. An index finds the entry with that number."""
    entries = JournalEntry.objects.using(engine.database).filter(task_id=OuterRef("pk")).order_by("name").values("pk")
    last = rows.order_by("-last_attempted_at").values("pk")[:CHECKED]
    long = engine.db.tasks.filter(pk__in=last).annotate(entry=Subquery(entries[NEAR_LIMIT : NEAR_LIMIT + 1]))
    if nearly_full := list(long.filter(entry__isnull=False).values_list("pk", flat=True)):
        text = ngettext(
            "Backend %(backend)s: the journal of %(number)s workflow has more than %(near)s of %(max)s entries: "
            "%(ids)s.",
            "Backend %(backend)s: the journals of %(number)s workflows have more than %(near)s of %(max)s entries: "
            "%(ids)s.",
            len(nearly_full),
        )
        yield checks.Warning(
            text % _values(engine, nearly_full),
            hint=_("Begin a new journal in its code from time to time: context.continue_as_new()."),
            obj=AdminTarget("task", pk=nearly_full[0]),
        )


def _values(engine: Engine, ids: Sequence[UUID]) -> dict[str, str]:
    names = ", ".join(map(str, ids[:IDS_SHOWN])) + ("…" if len(ids) > IDS_SHOWN else "")
    limits = {"near": number_text(NEAR_LIMIT), "max": number_text(MAX_ENTRIES)}
    return {"backend": engine.alias, "number": number_text(len(ids)), "ids": names, **limits}

"""The overview at the index of the app: problems, numbers, charts, tasks and executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core import checks
from django.http import HttpRequest
from django.utils.translation import gettext as _

from jobqueue.admin.base import requested_backend
from jobqueue.admin.charts import draw_charts, ranges, read_range
from jobqueue.admin.failures import read_causes
from jobqueue.admin.links import AdminUrls
from jobqueue.declarations.checks import run_checks
from jobqueue.engine import Count, Engine, count_or_estimate, engine_for
from jobqueue.operations.executors import ExecutorStats
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.findings import access_findings, find_problems, has_error
from jobqueue.operations.overview.periods import TaskCounts, read_counter_series, read_task_counts, slowest
from jobqueue.operations.overview.stats import BackendStats, read_stats
from jobqueue.operations.queries import tasks_with_status
from jobqueue.values.counters import Scope
from jobqueue.values.states import Status

TASKS_SHOWN = 5
CAUSES_SHOWN = 5
EXECUTORS_SHOWN = 10
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the overview."""

    text: str  # one sentence
    advice: str  # what to do
    address: str  # of the rows; empty if there are none
    is_error: bool  # an error and not a warning
    action: str = ""  # for all of the rows; empty if there is none


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the overview."""

    name: str  # of the number
    number: Count  # of tasks or executors
    kind: str  # its CSS class
    address: str = ""  # of the rows that it counts; empty if there is none
    parts: Sequence[tuple[str, str]] = ()  # the name and the address of each list, if it counts two


def read_overview(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the overview: of each part, what the user may see."""
    backend, offered = requested_backend(request)
    if not backend:
        return {"backend": ""}
    engine = engine_for(backend)
    pages = AdminUrls(request, backend)
    access = list(access_findings(engine))
    declared = [message for message in run_checks() if message.level >= checks.WARNING]
    context: dict[str, Any] = {"backend": backend, "backends": offered}
    if has_error(access):  # the tables cannot be read
        return {**context, "problems": make_findings([*access, *declared], pages)}
    stats = read_stats(engine)
    may_view = {f"may_view_{model}": pages.may_view(model) for model in ("task", "executor", "queue")}
    messages = [*access, *declared, *find_problems(engine, stats)]
    context |= {"now": stats.now, "problems": make_findings(messages, pages), **may_view}
    if may_view["may_view_task"]:
        range_ = read_range(request)
        timeline = read_counter_series(engine, range_, Scope.BACKEND)
        counts = read_task_counts(engine, range_)
        context |= {
            "figures": figures(engine, stats, pages),
            "ranges": ranges(request, range_),
            "charts": draw_charts(timeline),
            "frequent": [named(task_counts, pages) for task_counts in counts[:TASKS_SHOWN]],
            "all_causes": pages.page("task", "failures"),
            "workflows": pages.page("task", "workflows"),
            **read_causes(engine, pages, CAUSES_SHOWN),
            "slowest": [named(task_counts, pages) for task_counts in slowest(counts, TASKS_SHOWN)],
        }
    if may_view["may_view_executor"]:
        present = [executor for executor in stats.executors if not executor.is_gone]
        context |= {
            "executors": [(executor, executor_address(executor, pages)) for executor in present[:EXECUTORS_SHOWN]],
            "more_executors": max(0, len(present) - EXECUTORS_SHOWN),
        }
    return context


def make_findings(messages: Sequence[checks.CheckMessage], pages: AdminUrls) -> list[Finding]:
    """Return the problems, errors first."""
    by_level = sorted(messages, key=lambda message: -message.level)
    return [problem for message in by_level if (problem := make_finding(message, pages))]


def make_finding(message: checks.CheckMessage, pages: AdminUrls) -> Finding | None:
    """Return a problem; None if the user may not see the rows that it is about."""
    rows = message.obj if isinstance(message.obj, AdminTarget) else AdminTarget("executor")
    if not pages.may_view(rows.model):
        return None
    address = pages.address(rows) if message.obj is not None else ""
    return Finding(message.msg, message.hint or "", address, message.is_serious(), rows.action)


def figures(engine: Engine, stats: BackendStats, pages: AdminUrls) -> list[Figure]:
    def tasks(status: Status, **query: object) -> str:
        return pages.address(AdminTarget("task", {"status": status, **query}))

    # From a full minute, or the address would change with each refresh of the page.
    day_ago = (stats.now - DAY).replace(second=0, microsecond=0)
    failed = tasks_with_status(engine, Status.FAILED).filter(finished_at__gte=day_ago)
    totals = stats.totals
    blocked, scheduled = totals[Status.BLOCKED], totals[Status.SCHEDULED]
    waiting = [
        (_("%(number)s blocked") % {"number": blocked}, tasks(Status.BLOCKED)),
        (_("%(number)s scheduled") % {"number": scheduled}, tasks(Status.SCHEDULED)),
    ]
    return [
        Figure(_("Running"), totals[Status.RUNNING], "running", tasks(Status.RUNNING)),
        Figure(_("Ready"), totals[Status.READY], "ready", tasks(Status.READY)),
        Figure(_("Blocked and scheduled"), blocked + scheduled, "scheduled", parts=waiting),
        Figure(
            _("Failed in 24 h"),
            count_or_estimate(failed.order_by("-finished_at")),
            "failed",
            tasks(Status.FAILED, ended_since=day_ago.isoformat()),
        ),
        Figure(_("Executors"), Count(len(stats.alive)), "alive", pages.address(AdminTarget("executor"))),
    ]


def named(counts: TaskCounts, pages: AdminUrls) -> tuple[TaskCounts, str]:
    return counts, pages.address(AdminTarget("task", {"name": counts.name}, page="summary"))


def executor_address(executor: ExecutorStats, pages: AdminUrls) -> str:
    return pages.address(AdminTarget("executor", pk=executor.row.pk))

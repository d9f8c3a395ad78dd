"""The overview at the index of the app: problems, numbers, charts, tasks and executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.checks import CheckMessage
from django.http import HttpRequest
from django.utils.translation import gettext as _

from jobqueue import api
from jobqueue.admin.charts import charts_of, range_of, ranges
from jobqueue.admin.failures import read_causes
from jobqueue.admin.links import Pages
from jobqueue.engine import engine_for
from jobqueue.engine.clock import now_plus
from jobqueue.inspect.findings import problems
from jobqueue.inspect.links import Rows
from jobqueue.inspect.periods import TaskCounts, read_task_counts, read_timeline, slowest
from jobqueue.inspect.queries import Count, count, of_status
from jobqueue.inspect.stats import BackendStats, ExecutorState, ExecutorStats, read_stats
from jobqueue.metrics import Scope
from jobqueue.records import Status

TASKS_SHOWN = 5
CAUSES_SHOWN = 5
EXECUTORS_SHOWN = 10
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence, what to do, and the address of the rows; empty without rows."""

    text: str
    advice: str
    address: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name and the address of what it counts."""

    name: str
    number: Count
    address: str
    kind: str = ""


def read_overview(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the overview: of each part, what the user may see."""
    aliases = api.aliases()
    chosen = request.GET.get("backend", "")
    backend = chosen if chosen in aliases else next(iter(aliases), "")
    if not backend:
        return {"backend": ""}
    engine = engine_for(backend)
    pages = Pages(request, backend)
    stats = read_stats(engine)
    may_view = {f"may_view_{model}": pages.may_view(model) for model in ("task", "executor", "queue")}
    context: dict[str, Any] = {
        "backend": backend,
        "backends": aliases if len(aliases) > 1 else [],
        "now": stats.now,
        "problems": [problem for message in problems(engine, stats) if (problem := problem_of(message, pages))],
        **may_view,
    }
    if may_view["may_view_task"]:
        range_ = range_of(request)
        timeline = read_timeline(engine, range_, Scope.BACKEND)
        counts = read_task_counts(engine, range_)
        context |= {
            "figures": figures(stats, count_failed(engine), pages),
            "ranges": ranges(request, range_),
            "charts": charts_of(timeline),
            "frequent": [named(one, pages) for one in counts[:TASKS_SHOWN]],
            "all_causes": pages.page("task", "failures"),
            **read_causes(engine, pages, CAUSES_SHOWN),
            "slowest": [named(one, pages) for one in slowest(counts, TASKS_SHOWN)],
        }
    if may_view["may_view_executor"]:
        present = [one for one in stats.executors if one.state != ExecutorState.STOPPED]
        context |= {
            "executors": [(one, executor_address(one, pages)) for one in present[:EXECUTORS_SHOWN]],
            "more_executors": max(0, len(present) - EXECUTORS_SHOWN),
        }
    return context


def problem_of(message: CheckMessage, pages: Pages) -> Problem | None:
    """Return a problem; None if the user may not see the rows that it is about."""
    rows = message.obj if isinstance(message.obj, Rows) else Rows("executor")
    if not pages.may_view(rows.model):
        return None
    address = pages.address(rows) if message.obj is not None else ""
    return Problem(message.msg, message.hint or "", address, message.is_serious())


def count_failed(engine: Any) -> Count:
    """Count the tasks that failed within a day and have not been requeued since."""
    rows = of_status(engine, Status.FAILED).filter(finished_at__gte=now_plus(-DAY_SECONDS))
    return count(rows.order_by("-finished_at"))


def figures(stats: BackendStats, failed: Count, pages: Pages) -> list[Figure]:
    def tasks(status: Status) -> str:
        return pages.address(Rows("task", {"status": status}))

    totals = stats.totals
    waiting = totals[Status.BLOCKED] + totals[Status.SCHEDULED]
    later = Status.BLOCKED if totals[Status.BLOCKED] and not totals[Status.SCHEDULED] else Status.SCHEDULED
    return [
        Figure(_("Running"), totals[Status.RUNNING], tasks(Status.RUNNING), "running"),
        Figure(_("Ready"), totals[Status.READY], tasks(Status.READY), "ready"),
        Figure(_("Blocked and scheduled"), waiting, tasks(later), "scheduled"),
        Figure(_("Failed in 24 h"), failed, tasks(Status.FAILED), "failed"),
        Figure(_("Executors"), Count(len(stats.alive)), pages.address(Rows("executor")), "alive"),
    ]


def named(counts: TaskCounts, pages: Pages) -> tuple[TaskCounts, str]:
    return counts, pages.address(Rows("task", {"name": counts.name}, page="summary"))


def executor_address(executor: ExecutorStats, pages: Pages) -> str:
    return pages.address(Rows("executor", pk=executor.row.pk))

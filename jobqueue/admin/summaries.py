"""The pages of one task type and of one queue: charts, times, and the last failures."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern

from jobqueue.admin.base import Page, ReadOnlyAdmin, requested_backend
from jobqueue.admin.charts import draw_charts, duration_text, ranges, read_range
from jobqueue.admin.links import AdminUrls
from jobqueue.engine import Engine, engine_for
from jobqueue.models import Task
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.selection import Selection
from jobqueue.operations.overview.periods import Counts, read_counter_series
from jobqueue.values.counters import Scope
from jobqueue.values.states import LIVE, Status
from jobqueue.values.text import number_text

FAILURES_SHOWN = 10
SHARES = (0.5, 0.95, 0.99)
COLUMN = {Scope.TASK: "task", Scope.QUEUE: "queue"}  # the filter of the task list


class SummaryPage(Page):
    """A page for one name: of a queue, or of a task type."""

    def __init__(self, admin: ReadOnlyAdmin, scope: Scope) -> None:
        super().__init__(admin)
        self.scope = scope

    def get_urls(self) -> list[URLPattern]:
        return [self.address("summary/", self.view, "summary")]

    def view(self, request: HttpRequest) -> HttpResponse:
        if not self.admin.has_view_permission(request):
            raise PermissionDenied
        backend, _offered = requested_backend(request)
        name = request.GET.get("name", "").replace("\0", "")[:500]
        request.current_app = self.admin.admin_site.name
        context = {} if not backend else read_summary(request, AdminUrls(request, backend), self.scope, name)
        return self.admin.page(request, "summary", title=name, scope=self.scope, backend=backend, **context)


def read_summary(request: HttpRequest, pages: AdminUrls, scope: Scope, name: str) -> dict[str, Any]:
    engine = engine_for(pages.backend)
    span = read_range(request)
    timeline = read_counter_series(engine, span, scope, name)
    total = timeline.total
    query = {COLUMN[scope]: name}
    return {
        "now": engine.db.now(),
        "ranges": ranges(request, span),
        "charts": draw_charts(timeline),
        "total": total,
        "rate": None if total.failure_rate is None else f"{number_text(100 * total.failure_rate, '.1f')} %",
        "times": describe_times(total),
        "tasks": pages.address(AdminTarget("task", query)),
        "by_status": [
            (status, pages.address(AdminTarget("task", {**query, "status": status})))
            for status in (*LIVE, Status.FAILED)
        ],
        "may_view_task": pages.may_view("task"),
        "failures": last_failures(engine, pages, scope, name) if pages.may_view("task") else [],
    }


def describe_times(total: Counts) -> list[tuple[str, list[str]]]:
    """Return mean and percentiles in duration_text, of the wait and of the run."""
    return [
        ("wait", [duration_text(total.mean_wait), *(duration_text(total.wait(share)) for share in SHARES)]),
        ("run", [duration_text(total.mean_run), *(duration_text(total.run(share)) for share in SHARES)]),
    ]


def last_failures(engine: Engine, pages: AdminUrls, scope: Scope, name: str) -> list[tuple[Task, str, str]]:
    """Return the tasks that failed last, each with its error and its address; of a queue, in the list's window."""
    filters = {"status": Status.FAILED.value, "backend": engine.alias, COLUMN[scope]: name}
    selection = Selection(engine.database, filters, is_whole=scope is Scope.TASK)  # an index has those of a task
    keys = list(selection.rows.values_list("pk", flat=True)[:FAILURES_SHOWN])
    rows: list[Any] = read_rows(engine.db.tasks.all(), keys, with_payload=pages.with_payload)
    return [(row, row.headline, pages.address(AdminTarget("task", pk=row.pk))) for row in rows]

"""Failures by cause: how many, since when, one traceback, and buttons for all tasks of a cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from jobqueue.admin.base import Page, requested_backend
from jobqueue.admin.charts import HEIGHT, STEP, sparkline
from jobqueue.admin.links import AdminUrls
from jobqueue.engine import Count, Engine, engine_for
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.list.failures import (
    HOURS,
    MAX_CAUSES_FOUND,
    Failure,
    frequent_causes,
    newest_causes,
    read_failures,
)
from jobqueue.values.states import Status

CAUSES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause with its addresses, and its small chart."""

    failure: Failure  # the cause
    # The address of its tasks; empty for readers who may not see errors. For them, the causes have no name that an
    # address could have.
    tasks: str
    example: str  # the address of its newest task
    spark: str  # the path of its chart, an SVG
    spark_width: int = HOURS * STEP  # in units of the SVG
    spark_height: int = HEIGHT  # in units of the SVG

    @property
    def spark_words(self) -> str:
        number = sum(self.failure.hours)
        return _("%(number)s failed in the last 24 hours.") % {"number": Count.capped(number)}


def link_causes(failures: Iterable[Failure], pages: AdminUrls) -> list[Cause]:
    return [
        Cause(
            failure,
            pages.address(AdminTarget("task", {"status": Status.FAILED, "cause": failure.cause}))
            if failure.cause
            else "",
            pages.address(AdminTarget("task", pk=failure.example)),
            sparkline(failure.hours),
        )
        for failure in failures
    ]


def read_causes(engine: Engine, pages: AdminUrls, limit: int) -> dict[str, Any]:
    """Read the most frequent causes of the last failures, for a list."""
    frequent = frequent_causes(engine)
    failures = read_failures(engine, frequent[:limit], with_payload=pages.with_payload)
    return {"causes": link_causes(failures, pages), "has_more_causes": len(frequent) > limit}


def read_page(engine: Engine, pages: AdminUrls, number: str) -> dict[str, Any]:
    """Read a page of all causes. number: an invalid one gives the first or the last page."""
    newest = newest_causes(engine)
    page = Paginator(newest, CAUSES_SHOWN).get_page(number)
    failures = read_failures(engine, list(page.object_list), with_payload=pages.with_payload)
    numbers = page.paginator.get_elided_page_range(page.number)
    return {
        "causes": link_causes(failures, pages),
        "page": page,
        "number_of_causes": Count.capped(len(newest), MAX_CAUSES_FOUND),
        "pages": [
            (page_number, pages.page("task", "failures", p=page_number) if isinstance(page_number, int) else "")
            for page_number in numbers
        ],
    }


class FailuresPage(Page):
    """The page of all causes."""

    def get_urls(self) -> list[URLPattern]:
        return [self.address("failures/", self.view, "failures")]

    def view(self, request: HttpRequest) -> HttpResponse:
        if not self.admin.has_view_permission(request):
            raise PermissionDenied
        backend, offered = requested_backend(request)
        context: dict[str, Any] = {}
        if backend:
            engine = engine_for(backend)
            request.current_app = self.admin.admin_site.name
            context = {
                "now": engine.db.now(),
                **read_page(engine, AdminUrls(request, backend), request.GET.get("p", "")),
            }
        return self.admin.page(
            request,
            "task/failures",
            title=_("Failures by cause"),
            backend=backend,
            backends=offered,
            may_requeue=request.user.has_perm("jobqueue.requeue_task"),
            may_cancel=request.user.has_perm("jobqueue.cancel_task"),
            **context,
        )

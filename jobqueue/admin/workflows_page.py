"""The page of all workflows: how many run on which version of the code, and what they wait for."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from jobqueue.admin.base import Page, requested_backend
from jobqueue.admin.links import AdminUrls
from jobqueue.engine import engine_for
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.workflows import read_workflows


class WorkflowsPage(Page):
    """The page of all workflows."""

    def get_urls(self) -> list[URLPattern]:
        return [self.address("workflows/", self.view, "workflows")]

    def view(self, request: HttpRequest) -> HttpResponse:
        if not self.admin.has_view_permission(request):
            raise PermissionDenied
        backend, offered = requested_backend(request)
        request.current_app = self.admin.admin_site.name
        pages = AdminUrls(request, backend)
        groups = read_workflows(engine_for(backend)) if backend else []
        return self.admin.page(
            request,
            "task/workflows",
            title=_("Workflows"),
            backend=backend,
            backends=offered,
            groups=[
                (group, pages.address(AdminTarget("task", {"task": group.task_type, "status": group.status})))
                for group in groups
            ],
        )

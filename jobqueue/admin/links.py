"""Addresses of the admin's pages that a user may view."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse

from jobqueue.operations.links import AdminTarget


class AdminUrls:
    """The pages that a request may see, and their addresses."""

    def __init__(self, request: HttpRequest, backend: str) -> None:
        self.request, self.backend = request, backend

    def may_view(self, model: str) -> bool:
        return self.request.user.has_perm(f"jobqueue.view_{model}")

    @property
    def with_payload(self) -> bool:
        """Whether the user may see payloads and errors."""
        return self.request.user.has_perm("jobqueue.view_payload")

    def address(self, rows: AdminTarget) -> str:
        """Return the address of rows; empty if the user may not view them."""
        args = [] if rows.pk is None else [quote(str(rows.pk))]
        return self.page(rows.model, rows.page or ("changelist" if rows.pk is None else "change"), *args, **rows.query)

    def page(self, model: str, name: str, /, *args: object, **query: object) -> str:
        if not self.may_view(model):
            return ""
        site = getattr(self.request, "current_app", None)
        path = reverse(f"admin:jobqueue_{model}_{name}", args=args, current_app=site)
        return f"{path}?{urlencode({**query, 'backend': self.backend})}"

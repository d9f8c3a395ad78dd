"""The common part of all views: the method, the caller, errors, and their description in the OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.db import InterfaceError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from jobqueue.exceptions import DuplicateKey
from jobqueue.http.auth import authenticate
from jobqueue.http.responses import HttpError, service_unavailable
from jobqueue.values.text import printable

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponse]


@dataclass(frozen=True, slots=True)
class endpoint:
    """
    Make a view of a function that returns a response or raises HttpError. With a permission, it gets the `caller`.

    The view is exempt from Django's checks that answer in HTML or need a database: CSRF (auth.py checks it),
    ATOMIC_REQUESTS and LoginRequiredMiddleware.
    """

    method: str  # of HTTP
    answers: Mapping[int, tuple[str, Any]]  # description and type by status
    # Other statuses; their responses list problems. Those of every caller and body are added.
    errors: tuple[int, ...] = ()
    permission: str = ""  # empty if the view is public
    body: Any = None  # its type; None if there is none
    needs_body: bool = True  # a request without a body is refused
    headers: tuple[str, ...] = ()  # the optional ones of a request that the view reads

    @property
    def all_errors(self) -> list[int]:
        of_caller = (401, 403, 503) if self.permission else ()
        of_body = (400, 411, 413, 415) if self.body else ()
        return sorted((405, *of_caller, *of_body, *self.errors))

    def __call__(self, view: View) -> View:
        methods = ("GET", "HEAD") if self.method == "GET" else (self.method,)

        @wraps(view)
        def guarded(request: HttpRequest, **parts: Any) -> HttpResponse:
            try:
                if request.method not in methods:
                    allowed = ", ".join(methods)
                    raise HttpError(405, f"{request.method} is not allowed: {allowed}", headers={"Allow": allowed})
                if self.permission:
                    parts["caller"] = authenticate(request, self.permission)
                return view(request, **parts)
            except HttpError as error:
                return error.response()
            except (OperationalError, InterfaceError, DuplicateKey) as error:
                logger.warning("database.unreachable path=%s error=%s", printable(request.path), printable(str(error)))
                return service_unavailable().response()

        guarded.login_required = False  # type: ignore[attr-defined]
        guarded.endpoint = self  # type: ignore[attr-defined]
        for alias in connections:
            guarded = transaction.non_atomic_requests(alias)(guarded)
        return csrf_exempt(guarded)

"""What all views share: the method, the caller, errors, and their description in the OpenAPI document."""

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
from jobqueue.printable import printable

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponse]
ERRORS_WITH_CALLER = (401, 403, 503)
ERRORS_WITH_BODY = (400, 411, 413, 415)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    What a view reads and answers.

    answers: description and type by status. errors: other statuses, whose responses list problems. body: its type;
    None if there is none. permission: empty if anybody may call the view.
    """

    method: str
    answers: Mapping[int, tuple[str, Any]]
    errors: tuple[int, ...]
    permission: str = ""
    body: Any = None
    needs_body: bool = True


def endpoint(
    method: str,
    answers: Mapping[int, tuple[str, Any]],
    *errors: int,
    permission: str = "",
    body: Any = None,
    needs_body: bool = True,
) -> Callable[[View], View]:
    """
    Make a view of a function that returns a response or raises HttpError. With a permission, it gets the `caller`.

    The view is exempt from Django's checks that answer in HTML or need a database: CSRF (auth.py checks it),
    ATOMIC_REQUESTS and LoginRequiredMiddleware. The parameters are those of Operation.
    """
    methods = ("GET", "HEAD") if method == "GET" else (method,)
    errors += (405, *(ERRORS_WITH_CALLER if permission else ()), *(ERRORS_WITH_BODY if body else ()))

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, **parts: Any) -> HttpResponse:
            try:
                if request.method not in methods:
                    allowed = ", ".join(methods)
                    raise HttpError(405, f"{request.method} is not allowed: {allowed}", headers={"Allow": allowed})
                if permission:
                    parts["caller"] = authenticate(request, permission)
                return view(request, **parts)
            except HttpError as error:
                return error.response()
            except (OperationalError, InterfaceError, DuplicateKey) as error:
                logger.warning("database.unreachable path=%s error=%s", printable(request.path), printable(str(error)))
                return service_unavailable().response()

        guarded.login_required = False  # type: ignore[attr-defined]
        guarded.operation = Operation(  # type: ignore[attr-defined]
            method=method, answers=answers, errors=errors, permission=permission, body=body, needs_body=needs_body
        )
        for alias in connections:
            guarded = transaction.non_atomic_requests(alias)(guarded)
        return csrf_exempt(guarded)

    return decorate

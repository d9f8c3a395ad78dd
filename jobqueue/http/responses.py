"""Responses and errors of all views."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
from django.db import InterfaceError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from jobqueue.exceptions import DuplicateKey
from jobqueue.http.schemas import Problem
from jobqueue.printable import printable
from jobqueue.serialization.text import cut

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
MAX_PROBLEMS = 20  # in a response
MAX_PROBLEM_CHARACTERS = 1000  # of `what` and of `where`
View = Callable[..., HttpResponse]


class HttpError(Exception):
    """A response that lists problems."""

    def __init__(self, status: int, *problems: Problem | str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, *problems)
        self.status = status
        self.headers = headers or {}
        self.problems = [_shortened(problem) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            self.problems.append(Problem(f"There are more problems. Only the first {MAX_PROBLEMS} are listed."))

    def response(self) -> HttpResponse:
        return respond(self.problems, self.status, self.headers)


def _shortened(problem: Problem | str) -> Problem:
    if isinstance(problem, str):
        problem = Problem(problem)
    return Problem(cut(problem.what, MAX_PROBLEM_CHARACTERS), cut(problem.where, MAX_PROBLEM_CHARACTERS))


def service_unavailable(
    what: str = "The database is unavailable. Retry; a change you received no confirmation for was not made.",
) -> HttpError:
    return HttpError(503, what, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return a JSON response that is never cached. value: an instance of a type in schemas.py, or a list of them."""
    return HttpResponse(
        msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def endpoint(*methods: str) -> Callable[[View], View]:
    """
    Make a view of a function that returns a response or raises HttpError.

    The view is exempt from Django's checks that answer in HTML or need a database: CSRF (auth.py checks it),
    ATOMIC_REQUESTS and LoginRequiredMiddleware.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, **parts: str) -> HttpResponse:
            try:
                if request.method not in methods:
                    allowed = ", ".join(methods)
                    raise HttpError(405, f"{request.method} is not allowed: {allowed}", headers={"Allow": allowed})
                return view(request, **parts)
            except HttpError as error:
                return error.response()
            except (OperationalError, InterfaceError, DuplicateKey) as error:
                logger.warning("database.unreachable path=%s error=%s", printable(request.path), printable(str(error)))
                return service_unavailable().response()

        guarded.login_required = False  # type: ignore[attr-defined]
        for alias in connections:
            guarded = transaction.non_atomic_requests(alias)(guarded)
        return csrf_exempt(guarded)

    return decorate


def task_url(request: HttpRequest, pk: Any) -> str:
    """Return the path of a task, in the URL namespaces of the request."""
    match = request.resolver_match
    assert match is not None
    return reverse(":".join([*match.namespaces, "task"]), args=[str(pk)])

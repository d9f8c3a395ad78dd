"""What every view of the queue answers with, and how a view becomes one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import Any

from django.db import InterfaceError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from jobqueue.exceptions import DuplicateKey
from jobqueue.printable import printable
from jobqueue.serialization.text import cut

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
MAX_PROBLEMS = 20  # in an answer
MAX_PROBLEM_CHARACTERS = 1000  # of each, and of its place
View = Callable[..., HttpResponse]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. where: a JSON pointer into the body, "" for all of it."""

    what: str
    where: str = ""


class Refused(Exception):
    """The request is answered with problems."""

    def __init__(self, status: int, *problems: Problem | str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, *problems)
        self.status = status
        found = [problem if isinstance(problem, Problem) else Problem(problem) for problem in problems[:MAX_PROBLEMS]]
        self.problems = [replace(one, what=_cut(one.what), where=_cut(one.where)) for one in found]
        if len(problems) > MAX_PROBLEMS:
            self.problems.append(Problem(f"There are more problems. Only the first {MAX_PROBLEMS} are listed."))
        self.headers = headers or {}


def _cut(text: str) -> str:
    return cut(text, MAX_PROBLEM_CHARACTERS)


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Give a JSON response that nobody caches."""
    return JsonResponse(value, status=status, safe=False, headers={"Cache-Control": "no-store", **(headers or {})})


def refusal(refused: Refused) -> HttpResponse:
    return answer([asdict(problem) for problem in refused.problems], refused.status, refused.headers)


def away(what: str = "The database is away, or too busy. Nothing was changed that was not told.") -> Refused:
    return Refused(503, what, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def endpoint(*methods: str) -> Callable[[View], View]:
    """
    Make a view of a function that returns a response or raises Refused.

    Outside of Django's checks that answer in HTML or need a database: CSRF (see callers.py), ATOMIC_REQUESTS, and
    LoginRequiredMiddleware.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, **parts: str) -> HttpResponse:
            try:
                if request.method not in methods:
                    allowed = ", ".join(methods)
                    raise Refused(405, f"{request.method} is not allowed: {allowed}", headers={"Allow": allowed})
                return view(request, **parts)
            except Refused as refused:
                return refusal(refused)
            except (OperationalError, InterfaceError, DuplicateKey) as error:
                logger.warning("database away path=%s error=%s", printable(request.path), printable(str(error)))
                return refusal(away())

        guarded.login_required = False  # type: ignore[attr-defined]
        for alias in connections:
            guarded = transaction.non_atomic_requests(alias)(guarded)
        return csrf_exempt(guarded)

    return decorate


def url_of(request: HttpRequest, pk: Any) -> str:
    """Give the path of a task's page, under whatever namespaces the site has put these views."""
    match = request.resolver_match
    assert match is not None
    return reverse(":".join([*match.namespaces, "task"]), args=[str(pk)])

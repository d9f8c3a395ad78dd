"""Responses and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from jobqueue.http.schemas import Problem
from jobqueue.values.text import cut

RETRY_AFTER_SECONDS = 5
MAX_PROBLEMS = 20  # in a response
MAX_PROBLEM_CHARACTERS = 1000  # of `what` and of `where`


class HttpError(Exception):
    """A response that lists problems."""

    def __init__(self, status: int, *problems: Problem | str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, *problems)
        self.status = status
        self.headers = headers
        self.problems = [Problem(problem) if isinstance(problem, str) else problem for problem in problems]

    def response(self) -> HttpResponse:
        listed = [
            Problem(cut(problem.what, MAX_PROBLEM_CHARACTERS), cut(problem.where, MAX_PROBLEM_CHARACTERS))
            for problem in self.problems[:MAX_PROBLEMS]
        ]
        if len(self.problems) > MAX_PROBLEMS:
            listed.append(Problem(f"There are more problems. Only the first {MAX_PROBLEMS} are listed."))
        return respond(listed, self.status, self.headers)


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


def task_url(request: HttpRequest, pk: Any) -> str:
    """Return the path of a task, in the URL namespaces of the request."""
    match = request.resolver_match
    assert match is not None
    return reverse(":".join([*match.namespaces, "task"]), args=[str(pk)])

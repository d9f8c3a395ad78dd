"""Who calls, and what they may do: a program with a token of HTTP_TOKENS, or somebody who is logged in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from jobqueue import api, registry
from jobqueue.conf import options_for
from jobqueue.http.answers import Problem, Refused
from jobqueue.models import Task
from jobqueue.printable import printable
from jobqueue.tokens import Token

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="jobqueue"'}
SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Program:
    """The bearer of a token: reaches the tasks that it might submit, and no others."""

    token: Token
    backend: str

    def __str__(self) -> str:
        return f"token {self.token.name}"

    @property
    def owner(self) -> str:
        """Return the owner of idempotency keys: the token's name, which stays when its secret changes."""
        return f"token:{self.token.name}"

    @property
    def backends(self) -> Sequence[str]:
        return [self.backend]

    def may(self, permission: str) -> bool:
        return permission != "view_metrics" or self.token.metrics

    def may_see(self, row: Task) -> bool:
        task = registry.get(row.task_type)
        is_closed = task is not None and not task.allow_http
        return not is_closed and self.problem_with(row.backend, row.task_type, row.queue_name) is None

    def may_see_queue(self, backend: str, queue_name: str | None) -> bool:
        """Return whether it may see a queue's name. None is the backend as a whole. Metrics show all names."""
        is_own = backend == self.backend and (queue_name is None or self.token.allows_queue(queue_name))
        return is_own or self.token.metrics

    def may_take_along(self, row: Task) -> bool:
        """Whether it ends with an ancestor; `submit` is not asked, which is about what comes from outside."""
        return self.problem_with(row.backend, row.task_type, row.queue_name) is None

    def problem_with(self, backend: str, task_type: str, queue_name: str | None) -> Problem | None:
        """Say why it may not submit tasks of this type, to this queue if it is to be asked about; None when it may."""
        if not self.token.allows_task(task_type) or backend != self.backend:
            return Problem("The token does not allow this task.", "/task")
        if queue_name is not None and not self.token.allows_queue(queue_name):
            return Problem("The token does not allow this queue.", "/queue")
        return None


@dataclass(frozen=True, slots=True)
class Person:
    """A logged-in user: the permissions decide."""

    user: Any

    def __str__(self) -> str:
        return printable(f"user {self.user.get_username()}")

    @property
    def owner(self) -> str:
        return f"user:{self.user.pk}"

    @property
    def backends(self) -> Sequence[str]:
        return api.aliases()

    def may(self, permission: str) -> bool:
        return bool(self.user.has_perm(f"jobqueue.{permission}"))

    def may_see(self, row: Task) -> bool:
        return True

    def may_see_queue(self, backend: str, queue_name: str | None) -> bool:
        return True

    def may_take_along(self, row: Task) -> bool:
        return True

    def problem_with(self, backend: str, task_type: str, queue_name: str | None) -> Problem | None:
        return None


Caller: TypeAlias = Program | Person


def caller_of(request: HttpRequest, permission: str) -> Caller:
    """
    Say who calls. Raises Refused: 401 for nobody, 403 without the permission or the CSRF token.

    An Authorization header of another scheme than Bearer is meant for somebody else, a proxy say.
    """
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        program = _program(secret.strip())
        if not program.may(permission):
            raise Refused(403, "The token does not allow this.")
        return program
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        raise Refused(401, "Send a token, as `Authorization: Bearer ...`, or log in.", headers=CHALLENGE)
    if request.method not in SAFE and (reason := _Csrf.problem(request)):
        raise Refused(403, f"CSRF: {reason}")
    person = Person(user)
    if not person.may(permission):
        raise Refused(403, f"You need the permission jobqueue.{permission}.")
    return person


def _program(secret: str) -> Program:
    for alias in api.aliases():
        for token in options_for(alias).http_tokens:
            if token.has_secret(secret):
                return Program(token, alias)
    raise Refused(401, "This token is not known.", headers=CHALLENGE)


class _Csrf(CsrfViewMiddleware):
    """Django's check, asked when it is known that a cookie, not a token, says who calls."""

    def _reject(self, request: HttpRequest, reason: str) -> str:
        return reason

    @classmethod
    def problem(cls, request: HttpRequest) -> Any:
        check = cls(lambda _: HttpResponse())
        check.process_request(request)
        no_view: Any = None
        return check.process_view(request, no_view, (), {})

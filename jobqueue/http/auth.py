"""The caller of a request, a program with a token of HTTP_TOKENS or a logged-in user, and its permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from jobqueue import api
from jobqueue.conf.http_tokens import Token
from jobqueue.conf.options import options_for
from jobqueue.declarations import registry
from jobqueue.http.responses import HttpError
from jobqueue.http.schemas import Problem
from jobqueue.models import Task
from jobqueue.values.text import printable

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="jobqueue"'}
SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A program with a token, or a logged-in user. A program may use only the tasks that it may submit."""

    name: str  # for log lines
    owner: str  # of idempotency keys; it stays when the secret of a token changes
    backends: Sequence[str]  # those it may use
    may: Callable[[str], bool]  # whether it has a permission
    token: Token | None = None  # None for a user

    def problem_with(self, backend: str, task_type: str, queue_name: str | None) -> Problem | None:
        """Return why the caller may not use such tasks, or None. queue_name: None skips the check of the queue."""
        if self.token is None:
            return None
        if not any(map(self.token.allows_task, registry.all_names_of(task_type))) or backend not in self.backends:
            return Problem("The token does not allow this task.", "/task")
        if queue_name is not None and not self.token.allows_queue(queue_name):
            return Problem("The token does not allow this queue.", "/queue")
        return None

    def may_cancel_descendant(self, row: Task) -> bool:
        """Return whether a cancel of an ancestor may cancel this task, whether or not HTTP may submit it."""
        return self.problem_with(row.backend, row.task_type, row.queue_name) is None

    def may_see(self, row: Task) -> bool:
        task = registry.get(row.task_type)
        is_open = task is None or task.allow_http or self.token is None
        return is_open and self.may_cancel_descendant(row)

    def may_see_queue(self, backend: str, queue_name: str | None) -> bool:
        """Return whether the caller may see a queue's name. None is the backend as a whole."""
        if self.token is None or self.token.metrics:  # metrics show all names
            return True
        return backend in self.backends and (queue_name is None or self.token.allows_queue(queue_name))


def authenticate(request: HttpRequest, permission: str) -> Caller:
    """
    Return the caller of a request. Raises HttpError: 401 for an unknown one, 403 without permission or CSRF token.

    An Authorization header with another scheme than Bearer is ignored: it may be for a proxy.
    """
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    caller = _program(secret.strip()) if scheme.lower() == "bearer" else _user(request)
    if not caller.may(permission):
        needed = f"You need the permission jobqueue.{permission}."
        raise HttpError(403, "The token does not allow this." if caller.token else needed)
    return caller


def _program(secret: str) -> Caller:
    for alias in api.aliases():
        for token in options_for(alias).http_tokens:
            if token.has_secret(secret):
                return Caller(
                    name=f"token {token.name}",
                    owner=f"token:{token.name}",
                    backends=[alias],
                    may=token.may,
                    token=token,
                )
    raise HttpError(401, "Unknown token.", headers=CHALLENGE)


def _user(request: HttpRequest) -> Caller:
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        raise HttpError(401, "Send a token, as `Authorization: Bearer ...`, or log in.", headers=CHALLENGE)
    if request.method not in SAFE and (reason := _Csrf.problem(request)):
        raise HttpError(403, f"CSRF: {reason}")
    return Caller(
        name=printable(f"user {user.get_username()}"),
        owner=f"user:{user.pk}",
        backends=api.aliases(),
        may=lambda permission: user.has_perm(f"jobqueue.{permission}"),
    )


class _Csrf(CsrfViewMiddleware):
    """Django's check, for requests that a cookie authenticates, not a token."""

    def _reject(self, request: HttpRequest, reason: str) -> str:
        return reason

    @classmethod
    def problem(cls, request: HttpRequest) -> Any:
        check = cls(lambda _: HttpResponse())
        check.process_request(request)
        no_view: Any = None
        return check.process_view(request, no_view, (), {})

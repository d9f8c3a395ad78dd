"""Who sends a request, and what they may do: a program with a token of HTTP_TOKENS, or a logged-in user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from jobqueue import api, registry
from jobqueue.conf import options_for
from jobqueue.http.responses import HttpError
from jobqueue.http.schemas import Problem
from jobqueue.http_tokens import Token
from jobqueue.models import Task
from jobqueue.printable import printable

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="jobqueue"'}
SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class TokenCaller:
    """A program with a token. It may use the tasks that it may submit, and no others."""

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

    def may_cancel_descendant(self, row: Task) -> bool:
        """Return whether a cancel of an ancestor may cancel this task, whether or not HTTP may submit it."""
        return self.problem_with(row.backend, row.task_type, row.queue_name) is None

    def problem_with(self, backend: str, task_type: str, queue_name: str | None) -> Problem | None:
        """Return why the token may not submit such a task, or None. queue_name: None skips the check of the queue."""
        if not self.token.allows_task(task_type) or backend != self.backend:
            return Problem("The token does not allow this task.", "/task")
        if queue_name is not None and not self.token.allows_queue(queue_name):
            return Problem("The token does not allow this queue.", "/queue")
        return None


@dataclass(frozen=True, slots=True)
class UserCaller:
    """A logged-in user. Permissions decide."""

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

    def may_cancel_descendant(self, row: Task) -> bool:
        return True

    def problem_with(self, backend: str, task_type: str, queue_name: str | None) -> Problem | None:
        return None


Caller: TypeAlias = TokenCaller | UserCaller


def authenticate(request: HttpRequest, permission: str) -> Caller:
    """
    Return the caller of a request. Raises HttpError: 401 for an unknown one, 403 without permission or CSRF token.

    An Authorization header with another scheme than Bearer is ignored: it may be for a proxy.
    """
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        token_caller = _token_caller(secret.strip())
        if not token_caller.may(permission):
            raise HttpError(403, "The token does not allow this.")
        return token_caller
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        raise HttpError(401, "Send a token, as `Authorization: Bearer ...`, or log in.", headers=CHALLENGE)
    if request.method not in SAFE and (reason := _Csrf.problem(request)):
        raise HttpError(403, f"CSRF: {reason}")
    user_caller = UserCaller(user)
    if not user_caller.may(permission):
        raise HttpError(403, f"You need the permission jobqueue.{permission}.")
    return user_caller


def _token_caller(secret: str) -> TokenCaller:
    for alias in api.aliases():
        for token in options_for(alias).http_tokens:
            if token.has_secret(secret):
                return TokenCaller(token, alias)
    raise HttpError(401, "Unknown token.", headers=CHALLENGE)


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

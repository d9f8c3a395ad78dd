"""A client of the HTTP interface."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.test import Client

from tests import factories
from tests.settings import JOBQUEUE

SECRET = "a-long-random-text"
AUTHORIZATION = f"Bearer {SECRET}"
GREET = "tests.tasks.greet"
TaskFactory: Any = factories.TaskFactory  # creates a row, unknown to type checkers


def token(
    secret: str = SECRET, *, tasks: Sequence[str] = ("tests.*",), queues: Sequence[str] = ("*",)
) -> dict[str, Any]:
    """Return one entry of HTTP_TOKENS."""
    return {"sha256": hashlib.sha256(secret.encode()).hexdigest(), "tasks": list(tasks), "queues": list(queues)}


def tasks_setting(tokens: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Return TASKS of a site with a token for the tests' tasks."""
    own = {"HTTP_TOKENS": {"shop": token()} if tokens is None else tokens, **options}
    return {
        "default": {"BACKEND": JOBQUEUE, "QUEUES": ["default", "mail", "named"], "OPTIONS": own},
        "sqlite": {"BACKEND": JOBQUEUE, "QUEUES": [], "OPTIONS": {"DATABASE": "sqlite"}},
    }


class Shop:
    """A client that sends JSON with a token."""

    def __init__(self, client: Client, authorization: str = AUTHORIZATION) -> None:
        self.client = client
        self.headers = {"Authorization": authorization} if authorization else {}

    def get(self, path: str) -> Any:
        return self.client.get(f"/jobqueue/{path}", headers=self.headers)

    def post(self, path: str, body: Any = None, content_type: str = "application/json", **headers: str) -> Any:
        return self.client.post(f"/jobqueue/{path}", body, content_type, headers=self.headers | headers)

    def submit(self, **body: Any) -> Any:
        return self.post("submit/", {"task": GREET, "args": ["anna"], **body})


def person(*permissions: str, is_superuser: bool = False, checks_csrf: bool = False) -> Shop:
    """Return a logged-in user with permissions, who sends no token."""
    client = Client(enforce_csrf_checks=checks_csrf)
    client.force_login(factories.make_user(*permissions, is_superuser=is_superuser))
    return Shop(client, "")


def wheres(response: Any) -> list[str]:
    """Return the `where` of each problem."""
    return [problem["where"] for problem in response.json()]


def pk_of(response: Any) -> UUID:
    return UUID(response.json()["id"])

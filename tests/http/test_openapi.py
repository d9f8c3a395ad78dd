"""openapi.json: the document is valid, and the views respond to any request as it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client
from django.urls import get_resolver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobqueue.http.openapi import describe_views
from tests.factories import ExecutorFactory
from tests.http.client import AUTHORIZATION, GREET, TaskFactory, tasks_setting, token

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

TASKS = [UUID(int=number) for number in range(1, 6)]


@pytest.fixture(scope="module")
def schemathesis() -> Any:
    """It takes a second to load, so only the process that runs this file loads it."""
    return pytest.importorskip("schemathesis")


@pytest.fixture
def wsgi() -> Iterator[WSGIHandler]:
    """The site's WSGI application. A request does not close the connection with the test's transaction."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield WSGIHandler()
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    settings.TASKS = tasks_setting({"shop": token() | {"metrics": True}}, MAX_PAYLOAD_BYTES=1000)


def document(client: Client) -> dict[str, Any]:
    response = client.get("/jobqueue/openapi.json")
    assert response.status_code == 200
    return dict(response.json())


def test_document_contains_its_server(client: Client) -> None:
    served = document(client)

    assert served["openapi"].startswith("3.1")
    assert served["servers"] == [{"url": "/jobqueue"}]


def test_every_view_is_in_the_document(client: Client) -> None:
    patterns = get_resolver("jobqueue.urls").url_patterns
    routes = {"/" + str(pattern.pattern).replace("<str:", "{").replace(">", "}") for pattern in patterns}

    assert set(document(client)["paths"]) == routes


OPERATIONS = [(path, method) for path, item in describe_views()[0].items() for method in item if method != "parameters"]
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
]


STATES = ("scheduled", "running", "suspended", "successful", "failed", "cancelled")
# What is sure to be done, now and then: the state of the task that is asked for, and the body.
GOOD: dict[str, tuple[str, Any]] = {
    "/submit/": ("", {"task": GREET, "args": ["anna"]}),
    "/submit/batch/": ("", [{"task": GREET, "args": ["anna"]}]),
    "/tasks/{task_id}/": ("successful", None),
    "/tasks/{task_id}/cancel/": ("running", {}),
    "/tasks/{task_id}/requeue/": ("failed", None),
    "/tasks/{task_id}/messages/": ("suspended", {"body": "hello"}),
}


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_responses_conform_to_the_document(schemathesis: Any, wsgi: WSGIHandler, path: str, method: str) -> None:
    ExecutorFactory()
    ids = {state: str(TaskFactory(**{state: True}, task_type="tests.actors.Diary").pk) for state in STATES}
    schema = schemathesis.openapi.from_wsgi("/jobqueue/openapi.json", wsgi)
    checks = [getattr(schemathesis.checks, name) for name in CHECKS]
    seen: set[int] = set()

    @settings(max_examples=20, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(), state=st.sampled_from(STATES), turn=st.integers(0, 2))
    def answer(case: Any, state: str, turn: int) -> None:
        if turn and "task_id" in case.path_parameters:
            case.path_parameters["task_id"] = ids[state]
        if turn == 2 and path in GOOD:
            state, body = GOOD[path]
            case.path_parameters |= {"task_id": ids[state]} if state else {}
            case.body = case.body if body is None else body
        response = case.call(headers={"Authorization": AUTHORIZATION})
        case.validate_response(response, checks=checks)
        seen.add(response.status_code)

    answer()

    assert any(status < 300 for status in seen), f"nothing was done: {seen}"

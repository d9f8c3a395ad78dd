"""The HTTP interface under gunicorn: it finishes open requests, and reports an unreachable database."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import IO, Any, cast

import pytest

from jobqueue.http.submit import owned_key
from jobqueue.models import Task
from tests.acceptance.harness import Output
from tests.engine.sessions import session, wait_until_blocked
from tests.http.client import AUTHORIZATION, GREET, TaskFactory, token
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.slow

pytest.importorskip("gunicorn")


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port, self.output = process, port, Output(cast("IO[str]", process.stderr))

    def is_up(self) -> bool:
        assert self.process.poll() is None, "the server has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def request(self, method: str, path: str, body: Any = None) -> tuple[HTTPResponse, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        headers = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}
        connection.request(method, f"/jobqueue/{path}", None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        value = json.loads(response.read())
        connection.close()
        return response, value


@contextmanager
def serve(environment: dict[str, str]) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"TESTS_OPTIONS": json.dumps({"HTTP_TOKENS": {"shop": token()}})}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "--no-control-socket", "--workers", "1", "--threads", "2"),
            *("--bind", f"127.0.0.1:{port}", "django.core.wsgi:get_wsgi_application()"),
        ],
        env=environment | options,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = Server(process, port)
    try:
        wait_until(server.is_up, "the server listens")
        yield server
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)
        server.output.wait_for_end()


@pytest.mark.django_db(transaction=True)
def test_server_on_sigterm_finishes_its_open_request(process_environment: dict[str, str]) -> None:
    with (
        serve(process_environment) as server,
        session() as other,
        ThreadPoolExecutor(1) as pool,
    ):
        held = TaskFactory()
        stored_key = owned_key("token:shop", "order-1")
        other.run("UPDATE jobqueue_task SET idempotency_key = %s WHERE id = %s", stored_key, held.pk)
        body = {"task": GREET, "args": ["anna"], "idempotency_key": "order-1"}
        request = pool.submit(server.request, "POST", "submit/", body)
        wait_until_blocked()

        server.process.send_signal(signal.SIGTERM)
        server.output.wait_for("Handling signal: term")
        other.rollback()
        response, value = request.result(DEADLINE_SECONDS)

        assert response.status == 201
        assert Task.objects.get(pk=value["id"]).idempotency_key == stored_key
        assert server.process.wait(DEADLINE_SECONDS) == 0


def test_request_without_database_gets_503() -> None:
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
    }
    with serve(environment) as server:
        submitted, problems = server.request("POST", "submit/", {"task": GREET, "args": ["anna"]})
        live, _ = server.request("GET", "health/live")
        ready, failing = server.request("GET", "health/ready")

    assert (submitted.status, submitted.headers["Retry-After"]) == (503, "5")
    assert "database is unavailable" in problems[0]["what"]
    assert live.status == 200
    assert (ready.status, failing["problems"][0]["what"]) == (503, "The database is unreachable.")

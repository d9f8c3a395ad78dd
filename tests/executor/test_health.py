"""The health server and the aggregator by themselves."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPResponse
from tempfile import TemporaryDirectory

import pytest

from jobqueue.executor.health.probes import STOP_SECONDS, Address, listen, parse_address, serving, systemd_report
from jobqueue.executor.health.status import HealthAggregator, HealthProblem, HealthStatus, StatusReader

SECONDS = 120.0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8081", Address("0.0.0.0", 8081)),
        ("localhost:8081", Address("localhost", 8081)),
        ("8081", Address("127.0.0.1", 8081)),
        (":8081", Address("127.0.0.1", 8081)),
        ("[::]:8081", Address("::", 8081)),
        ("[::1]:0", Address("::1", 0)),
    ],
)
def test_parse_address_accepts_hosts_and_ports(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "localhost", "localhost:", "localhost:http", "::1:8081", "a:65536", "a:-1", "a:²"]
)
def test_parse_address_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be HOST:PORT, or a PORT|in brackets"):
        parse_address(text)


@pytest.fixture
def port() -> Iterator[int]:
    """Answer probes of an executor that is not ready."""
    status = HealthStatus(unready=(HealthProblem("web.1", "It is paused."),))
    with listen(Address("127.0.0.1", 0)) as listener, serving(listener, lambda: status):
        yield listener.getsockname()[1]


def request(port: int, path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_probe_answers_problems_as_json(port: int) -> None:
    ready, body = request(port, "/readyz")

    assert (ready.status, ready.headers["Content-Type"]) == (503, "application/json")
    assert json.loads(body) == {"status": "failing", "problems": [{"where": "web.1", "what": "It is paused."}]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/livez?verbose", 200), ("HEAD", "/readyz", 503), ("GET", "/", 404), ("POST", "/livez", 405)],
)
def test_probe_answers_each_request(port: int, method: str, path: str, status: int) -> None:
    response, body = request(port, path, method)

    assert response.status == status
    assert bool(body) is (method != "HEAD")


def test_probes_are_answered_beside_many_silent_callers(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS)).send(b"G")

        assert request(port, "/livez")[0].status == 200


def test_caller_that_sends_single_bytes_loses_its_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.executor.health.probes.CALLER_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port), 0.05) as caller:
        for _ in range(1000):
            try:
                caller.send(b"G")
                assert caller.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("The connection is still open.")


def test_request_that_is_too_long_loses_its_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), SECONDS) as caller, suppress(ConnectionError):
        caller.sendall(b"G" * 100_000)
        assert caller.recv(1) == b""


def test_silent_caller_does_not_delay_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with listen(Address("127.0.0.1", 0)) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        with serving(listener, HealthStatus):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
            caller.send(b"GET /li")
            request(port, "/livez")  # accepted later
            began = time.monotonic()
        assert time.monotonic() - began < STOP_SECONDS / 2
        assert caller.recv(1) == b""
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def child() -> Iterator[tuple[socket.socket, StatusReader]]:
    """Return a child's end of its socket, and what reads the other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, StatusReader(ours)


def test_status_reader_keeps_the_latest_whole_report(child: tuple[socket.socket, StatusReader]) -> None:
    sender, reader = child
    latest = HealthStatus((HealthProblem("a", "stands still"),), (HealthProblem("b", "„stops“"),), is_stopping=True)
    text = latest.to_json()
    sender.sendall(HealthStatus().to_json() + b"\n" + text[:9])
    reader.read()
    assert reader.status == HealthStatus()
    sender.sendall(text[9:] + b"\n")
    reader.read()
    assert reader.status == latest


@pytest.mark.parametrize("line", [b"", b"GET /", b"[]", b'{"stalled": 1}', b"\xff", b"null"])
def test_status_reader_ignores_invalid_reports(child: tuple[socket.socket, StatusReader], line: bytes) -> None:
    sender, reader = child
    sender.sendall(HealthStatus(is_stopping=True).to_json() + b"\n" + line + b"\n")
    reader.read()
    assert reader.status == HealthStatus(is_stopping=True)


def test_status_reader_reads_the_last_report_of_an_ended_child(child: tuple[socket.socket, StatusReader]) -> None:
    sender, reader = child
    sender.sendall(HealthStatus(was_stopped_on_request=True).to_json() + b"\n")
    sender.close()
    reader.close()
    assert reader.was_stopped_on_request


def test_aggregator_is_ready_when_all_children_are(child: tuple[socket.socket, StatusReader]) -> None:
    sender, reader = child
    health = HealthAggregator(SECONDS)
    assert health.status().unready == (HealthProblem("supervisor", "It is starting."),)
    health.update({7: reader}, 2, is_stopping=False)
    assert health.status() == HealthStatus(
        unready=(
            HealthProblem("process 7", "It is starting."),
            HealthProblem("supervisor", "1 of 2 processes do not run."),
        )
    )
    sender.sendall(HealthStatus().to_json() + b"\n")
    health.update({7: reader}, 1, is_stopping=False)
    assert health.status() == HealthStatus()
    health.update({7: reader}, 1, is_stopping=True)
    assert health.status() == HealthStatus((), (HealthProblem("supervisor", "It is stopping."),), is_stopping=True)


def test_aggregator_reports_a_silent_child(child: tuple[socket.socket, StatusReader]) -> None:
    health = HealthAggregator(SECONDS)
    child[1].reported_at -= 2 * SECONDS
    health.update({7: child[1]}, 1, is_stopping=False)
    assert [problem.where for problem in health.status().stalled] == ["process 7"]


def test_aggregator_reports_a_silent_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    health = HealthAggregator(SECONDS)
    later = time.monotonic() + 2 * SECONDS
    monkeypatch.setattr("jobqueue.executor.health.status.time.monotonic", lambda: later)
    assert [problem.where for problem in health.status().stalled] == ["supervisor"]
    assert len(health.status().unready) == 2


def test_systemd_status_is_one_line() -> None:
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{folder}/notify")
        report = systemd_report({"NOTIFY_SOCKET": f"{folder}/notify"})
        assert report is not None
        report(HealthStatus(unready=(HealthProblem("web\nREADY=1", "It is \udcff."),)))
        assert manager.recv(4096) == b"WATCHDOG=1\nSTATUS=web READY=1: It is ?."


def test_missing_systemd_socket_raises_nothing() -> None:
    report = systemd_report({"NOTIFY_SOCKET": "/nonexistent/notify"})
    assert report is not None
    report(HealthStatus())
    assert systemd_report({}) is None

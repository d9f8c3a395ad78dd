"""The health server and the aggregator by themselves."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import ThreadingHTTPServer
from tempfile import TemporaryDirectory

import pytest

from jobqueue.executor.health import server as module
from jobqueue.executor.health.aggregator import HealthAggregator, StatusReader
from jobqueue.executor.health.server import Address, HealthServer, listen, parse_address
from jobqueue.executor.health.status import HealthStatus, Problem
from jobqueue.executor.health.systemd import SystemdNotifier

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


@contextmanager
def server_of(health: HealthStatus | threading.Event) -> Iterator[HealthServer]:
    def answer() -> HealthStatus:
        if isinstance(health, HealthStatus):
            return health
        asked.set()
        health.wait(3 * SECONDS)
        return HealthStatus()

    asked = threading.Event()
    with listen(Address("127.0.0.1", 0)) as listener:
        server = HealthServer(listener, answer)
        server.asked = asked  # type: ignore[attr-defined]
        server.start()
        yield server


def request(server: HealthServer, path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.socket.getsockname()[1], timeout=SECONDS)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_probe_answers_problems_as_json() -> None:
    away = Problem("web.1", "The database is away.")
    with server_of(HealthStatus(unready=(away,))) as server:
        live, _ = request(server, "/livez?verbose")
        ready, body = request(server, "/readyz")
        head, nothing = request(server, "/readyz", "HEAD")
        other, _ = request(server, "/")
        post, said = request(server, "/livez", "POST")
        server.stop()

    assert (live.status, ready.status, head.status, other.status, post.status) == (200, 503, 503, 404, 501)
    assert ready.headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"status": "failing", "problems": [{"where": "web.1", "what": "The database is away."}]}
    assert nothing == b""
    assert said == b"501 Unsupported method ('POST')\n"


def test_server_stop_finishes_running_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", SECONDS)
    release, answers = threading.Event(), list[int]()
    with server_of(release) as server:
        caller = threading.Thread(target=lambda: answers.append(request(server, "/livez")[0].status))
        caller.start()
        assert server.asked.wait(SECONDS)  # type: ignore[attr-defined]
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        assert stopper.is_alive()
        release.set()
        stopper.join(SECONDS)
        caller.join(SECONDS)

    assert answers == [200]


def test_server_stop_does_not_wait_for_an_endless_request() -> None:
    release = threading.Event()
    with server_of(release) as server:
        caller = threading.Thread(target=lambda: request(server, "/livez"))
        caller.start()
        assert server.asked.wait(SECONDS)  # type: ignore[attr-defined]
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        stopper.join(SECONDS)
        assert not stopper.is_alive()
        release.set()
        caller.join(SECONDS)


def slow_callers(server: HealthServer, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connect, and send the first byte of a request."""
    address = server.socket.getsockname()
    callers = [stack.enter_context(socket.create_connection(address, SECONDS)) for _ in range(count)]
    for caller in callers:
        caller.send(b"G")
    return callers


def test_server_answers_beside_too_many_slow_callers() -> None:
    with server_of(HealthStatus()) as server, ExitStack() as stack:
        slow_callers(server, module.MAX_CALLERS + 6, stack)

        for _ in range(20):
            response, _ = request(server, "/livez")
            assert response.status == 200

        server.stop()


def test_server_drops_the_oldest_of_too_many_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLER_SECONDS", 2 * SECONDS)
    with server_of(HealthStatus()) as server, ExitStack() as stack:
        callers = slow_callers(server, module.MAX_CALLERS, stack)
        request(server, "/livez")

        assert callers[0].recv(1) == b""
        callers[1].send(b"ET /livez HTTP/1.0\r\n\r\n")
        assert callers[1].recv(4096).startswith(b"HTTP/1.0 200")
        assert threading.active_count() < 2 * module.MAX_CALLERS
        server.stop()


def test_server_drops_a_caller_that_sends_single_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLER_SECONDS", 0.5)
    with server_of(HealthStatus()) as server, ExitStack() as stack:
        (caller,) = slow_callers(server, 1, stack)
        caller.settimeout(0.05)
        deadline = time.monotonic() + SECONDS / 3
        is_open = True
        while is_open and time.monotonic() < deadline:
            try:
                caller.send(b"G")
                is_open = caller.recv(1) != b""
            except TimeoutError:
                continue
            except OSError:
                is_open = False

        assert not is_open
        server.stop()


def test_server_forgets_callers_that_got_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "MAX_CALLERS", 1)
    with server_of(HealthStatus()) as server:
        with monkeypatch.context() as patch:
            patch.setattr(ThreadingHTTPServer, "process_request", refuse)
            with pytest.raises(OSError):  # noqa: PT011 - however the system words it
                request(server, "/livez")
        response, _ = request(server, "/livez")
        assert response.status == 200
        server.stop()


@pytest.fixture
def child() -> Iterator[tuple[socket.socket, StatusReader]]:
    """Return a child's end of its socket, and what reads the other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, StatusReader(ours)


def test_status_reader_keeps_the_latest_whole_report(child: tuple[socket.socket, StatusReader]) -> None:
    sender, reader = child
    latest = HealthStatus((Problem("a", "stands still"),), (Problem("b", "„stops“"),), is_stopping=True)
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
    health = HealthAggregator(SECONDS, None)
    assert health.status().unready == (Problem("supervisor", "It is starting."),)
    health.update({7: reader}, 2, is_stopping=False)
    assert health.status() == HealthStatus(
        unready=(
            Problem("process 7", "It is starting."),
            Problem("supervisor", "Of 2 processes 1 are to be started."),
        )
    )
    sender.sendall(HealthStatus().to_json() + b"\n")
    health.update({7: reader}, 1, is_stopping=False)
    assert health.status() == HealthStatus()
    health.update({7: reader}, 1, is_stopping=True)
    assert health.status() == HealthStatus((), (Problem("supervisor", "It is stopping."),), is_stopping=True)


def test_aggregator_reports_a_silent_child(child: tuple[socket.socket, StatusReader]) -> None:
    health = HealthAggregator(SECONDS, None)
    child[1].parent_notified_at -= 2 * SECONDS
    health.update({7: child[1]}, 1, is_stopping=False)
    assert [problem.where for problem in health.status().stalled] == ["process 7"]


def test_aggregator_reports_a_silent_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    health = HealthAggregator(SECONDS, None)
    later = time.monotonic() + 2 * SECONDS
    monkeypatch.setattr("jobqueue.executor.health.aggregator.time.monotonic", lambda: later)
    assert [problem.where for problem in health.status().stalled] == ["supervisor"]
    assert len(health.status().unready) == 2


def test_systemd_status_is_one_line() -> None:
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{folder}/notify")
        systemd = SystemdNotifier.from_environment({"NOTIFY_SOCKET": f"{folder}/notify"})
        assert systemd is not None
        systemd.notify(HealthStatus(unready=(Problem("web\nREADY=1", "It is \udcff."),)))
        assert manager.recv(4096) == b"WATCHDOG=1\nSTATUS=web READY=1: It is ?."


def test_systemd_notifier_ignores_a_missing_socket() -> None:
    systemd = SystemdNotifier("/nonexistent/notify")
    systemd.notify(HealthStatus())
    assert SystemdNotifier.from_environment({}) is None

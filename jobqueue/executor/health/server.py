"""`--health HOST:PORT`: /livez and /readyz, for Kubernetes and other service managers."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jobqueue.executor.health.status import HealthStatus, Problem
from jobqueue.printable import printable

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
CALLER_SECONDS = 2.0  # from the connection of a caller to the end of its answer
GRACE_SECONDS = 1.0  # for the requests of the last moment, at the end of the process
POLL_SECONDS = 0.25  # how soon stop() is noticed
MAX_CALLERS = 64  # a new one replaces the oldest


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read HOST:PORT, [IPv6]:PORT, or a PORT of 127.0.0.1. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"put an IPv6 address in brackets, [{host}]:{port}, not {text!r}")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"must be HOST:PORT, or a PORT of 127.0.0.1, not {text!r}")
    return Address(host or LOOPBACK, int(port))


def listen(address: Address) -> socket.socket:
    """Bind the port. Raises OSError."""
    is_ipv6 = ":" in address.host
    is_both = address.host == "::" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=128, dualstack_ipv6=is_both)


def url_of(listener: socket.socket) -> str:
    return f"http://{Address(*listener.getsockname()[:2])}"


class HealthServer(ThreadingHTTPServer):
    """Answers probes in threads of its own, from a listening socket, until stop()."""

    daemon_threads = True
    block_on_close = False  # we wait for requests ourselves, and not for long

    def __init__(self, listener: socket.socket, status: Callable[[], HealthStatus]) -> None:
        self.address_family = listener.family
        super().__init__(listener.getsockname()[:2], Probe, bind_and_activate=False)
        self.socket.close()
        self.socket, self.status = listener, status
        self._idle = threading.Condition()
        self._callers: dict[Any, float] = {}  # connection time by socket, the oldest first
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests that have come, within GRACE_SECONDS."""
        self.shutdown()
        with self._idle:
            self._idle.wait_for(lambda: not self._callers, GRACE_SECONDS)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._idle:
            if len(self._callers) >= MAX_CALLERS:
                self._drop(next(iter(self._callers)))  # the oldest: a probe sends its request at once
            self._callers[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Drop callers that take too long. serve_forever() calls this every POLL_SECONDS."""
        with self._idle:
            too_early = time.monotonic() - CALLER_SECONDS
            for request in [request for request, began_at in self._callers.items() if began_at < too_early]:
                self._drop(request)

    def _drop(self, request: Any) -> None:
        """Shut down a connection. The thread that reads from it gets an end of file and closes it."""
        del self._callers[request]
        with suppress(OSError):  # the caller has closed it already
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Forget a caller before its socket is closed, because a new socket may get the same number."""
        with self._idle:
            self._callers.pop(request, None)
            self._idle.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("health.request_failed client=%s", client_address, exc_info=True)  # usually a caller that hung up


class Probe(BaseHTTPRequestHandler):
    timeout = CALLER_SECONDS
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"
    server: HealthServer

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/livez":
                self._answer(self.server.status().stalled)
            case "/readyz":
                self._answer(self.server.status().unready)
            case _:
                self._send(404, {"status": "unknown", "paths": ["/livez", "/readyz"]})

    do_HEAD = do_GET

    def _answer(self, problems: tuple[Problem, ...]) -> None:
        if problems:
            self._send(503, {"status": "failing", "problems": [asdict(problem) for problem in problems]})
        else:
            self._send(200, {"status": "ok"})

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "jobqueue"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        logger.debug("health.requested request=%s", printable(self.requestline) if hasattr(self, "requestline") else "")


@contextmanager
def serving(listener: socket.socket | None, status: Callable[[], HealthStatus]) -> Iterator[None]:
    """Answer probes while the block runs. Do nothing without a listener."""
    if listener is None:
        yield
        return
    server = HealthServer(listener, status)
    server.start()
    try:
        yield
    finally:
        server.stop()

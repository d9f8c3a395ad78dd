"""Answer service managers: /livez and /readyz over HTTP, and systemd's `Type=notify`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from jobqueue.executor.health.status import HealthStatus, Report
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.text import printable

logger = get_logger(__name__)

LOOPBACK = "127.0.0.1"
CALLER_SECONDS = 2.0  # from the connection of a caller to the end of its answer
STOP_SECONDS = 1.0
MAX_REQUEST_BYTES = 8192

GetStatus = Callable[[], HealthStatus]


class Address(NamedTuple):
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
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    is_both = address.host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=is_both)


def url_of(listener: socket.socket) -> str:
    return f"http://{Address(*listener.getsockname()[:2])}"


@contextmanager
def serving(listener: socket.socket | None, status: GetStatus) -> Iterator[None]:
    """Answer probes in a thread while the block runs. Do nothing without a listener."""
    if listener is None:
        yield
        return
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(partial(_answer, status), sock=listener, limit=MAX_REQUEST_BYTES)
        await stopped.wait()
        server.close()  # without wait_closed(), which waits for silent callers

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # cancels the callers that are left at the end
            runner.run(serve())

    thread = threading.Thread(target=run, name="health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(STOP_SECONDS)


async def _answer(status: GetStatus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one caller, or hang up if it takes too long."""
    try:
        async with asyncio.timeout(CALLER_SECONDS):
            request = await reader.readuntil(b"\r\n\r\n")
            logger.debug("health.requested request=%s", printable(request.partition(b"\r\n")[0].decode("latin-1")))
            writer.write(_response(request, status))
            await writer.drain()
    except asyncio.CancelledError:  # The process ends. asyncio would log the cancellation as an error.
        pass
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:  # TimeoutError is an OSError
        logger.debug("health.request_failed client=%s error=%r", writer.get_extra_info("peername"), error)
    finally:
        writer.close()


def _response(request: bytes, status: GetStatus) -> bytes:
    method, target, *_ = [*request.split(maxsplit=2), b"", b""]
    path = target.partition(b"?")[0]
    value: dict[str, object]
    if method not in (b"GET", b"HEAD"):
        code, value = HTTPStatus.METHOD_NOT_ALLOWED, {"status": "unknown", "methods": ["GET", "HEAD"]}
    elif path not in (b"/livez", b"/readyz"):
        code, value = HTTPStatus.NOT_FOUND, {"status": "unknown", "paths": ["/livez", "/readyz"]}
    elif problems := status().stalled if path == b"/livez" else status().unready:
        listed = [asdict(problem) for problem in problems]
        code, value = HTTPStatus.SERVICE_UNAVAILABLE, {"status": "failing", "problems": listed}
    else:
        code, value = HTTPStatus.OK, {"status": "ok"}
    body = json.dumps(value).encode() + b"\n"
    head = (
        f"HTTP/1.1 {code} {code.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


class SystemdNotifier:
    """
    Sends the status to the socket that NOTIFY_SOCKET names. Call notify() every second.

    It sends READY=1 once, the first time that the status is ready. It sends WATCHDOG=1 each time, unless something
    has stalled.
    """

    def __init__(self, path: str) -> None:
        self._path = "\0" + path[1:] if path.startswith("@") else path  # "@": Linux's sockets without a file
        self._sent: set[str] = set()  # of what is sent once

    def notify(self, status: HealthStatus) -> None:
        problems = "; ".join(f"{problem.where}: {problem.what}" for problem in status.unready)
        # Each line is an assignment, so the reasons must be one line.
        once = {f"STATUS={' '.join(problems.split()) or 'ready'}"}
        if not status.unready:
            once.add("READY=1")
        if status.is_stopping:
            once.add("STOPPING=1")
        assignments = ([] if status.stalled else ["WATCHDOG=1"]) + sorted(once - self._sent)
        self._sent = once | (self._sent & {"READY=1", "STOPPING=1"})
        if assignments:
            self._send("\n".join(assignments))

    def _send(self, text: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(text.encode(errors="replace"), self._path)
        except OSError as error:
            logger.debug("systemd.notify_failed error=%s", error)


def systemd_report(environment: Mapping[str, str] = os.environ) -> Report | None:
    """Return a function that reports a status to systemd; None if systemd expects no notifications."""
    path = environment.get("NOTIFY_SOCKET", "")
    return SystemdNotifier(path).notify if path.startswith(("/", "@")) else None

"""systemd's `Type=notify` and `WatchdogSec=`: ready, stopping, and alive."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from jobqueue.executor.health.status import HealthStatus
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)


class SystemdNotifier:
    """
    Sends the status to the socket that NOTIFY_SOCKET names. Call notify() every second.

    It sends READY=1 once, the first time that the status is ready. It sends WATCHDOG=1 each time, unless something
    has stalled.
    """

    def __init__(self, path: str) -> None:
        self._path = "\0" + path[1:] if path.startswith("@") else path  # "@": Linux's sockets without a file
        self._is_ready = self._is_stopping = False
        self._status_line = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> SystemdNotifier | None:
        """Return None if systemd expects no notifications."""
        path = environment.get("NOTIFY_SOCKET", "")
        return cls(path) if path.startswith(("/", "@")) else None

    def notify(self, status: HealthStatus) -> None:
        assignments = []
        if not status.stalled:
            assignments.append("WATCHDOG=1")
        if not status.unready and not self._is_ready:
            self._is_ready = True
            assignments.append("READY=1")
        if status.is_stopping and not self._is_stopping:
            self._is_stopping = True
            assignments.append("STOPPING=1")
        problems = "; ".join(f"{problem.where}: {problem.what}" for problem in status.unready)
        status_line = " ".join(problems.split()) or "ready"  # each line is an assignment, so it must be one line
        if status_line != self._status_line:
            self._status_line = status_line
            assignments.append(f"STATUS={status_line}")
        if assignments:
            self._send("\n".join(assignments))

    def _send(self, text: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(text.encode(errors="replace"), self._path)
        except OSError as error:
            logger.debug("systemd.notify_failed error=%s", error)

"""Tells systemd (`Type=notify`) that we are ready, that we stop, and that we still move (`WatchdogSec=`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from jobqueue.executor.health import Health
from jobqueue.executor.log import logger


class Systemd:
    """
    The other end of NOTIFY_SOCKET; tell() it how we are, again and again.

    READY=1 goes out once, when there is nothing to complain of; WATCHDOG=1 each time, unless something has stalled.
    """

    def __init__(self, where: str) -> None:
        self._where = "\0" + where[1:] if where.startswith("@") else where  # of Linux, without a file
        self._is_ready = self._is_stopping = False
        self._status = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Systemd | None:
        """None where no systemd wants to hear anything."""
        where = environment.get("NOTIFY_SOCKET", "")
        return cls(where) if where.startswith(("/", "@")) else None

    def tell(self, health: Health) -> None:
        news = []
        if not health.stalled:
            news.append("WATCHDOG=1")
        if not health.unready and not self._is_ready:
            self._is_ready = True
            news.append("READY=1")
        if health.is_stopping and not self._is_stopping:
            self._is_stopping = True
            news.append("STOPPING=1")
        complaints = "; ".join(f"{complaint.where}: {complaint.what}" for complaint in health.unready)
        status = " ".join(complaints.split()) or "ready"  # a line is an assignment of its own
        if status != self._status:
            self._status = status
            news.append(f"STATUS={status}")
        if news:
            self._send("\n".join(news))

    def _send(self, text: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(text.encode(errors="replace"), self._where)
        except OSError as error:
            logger.debug("systemd.unheard %s", error)

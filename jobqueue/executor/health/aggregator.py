"""The health of all processes of one command, as its supervisor sees them."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from jobqueue.executor.health.status import HealthStatus, Problem
from jobqueue.executor.health.systemd import SystemdNotifier

logger = logging.getLogger("jobqueue.executor.health")

READ_BYTES = 65536
STARTING = Problem("supervisor", "It is starting.")


class StatusReader:
    """Reads what a child process reports: one HealthStatus a line. status: the latest, None before the first."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection, self._incomplete = connection, b""
        self.status: HealthStatus | None = None
        self.parent_notified_at = time.monotonic()

    def read(self) -> None:
        """Read what has arrived, without waiting."""
        with suppress(OSError):  # nothing has arrived, or the child has ended
            while received := self._connection.recv(READ_BYTES):
                *lines, self._incomplete = (self._incomplete + received).split(b"\n")
                for line in lines:
                    self._accept(line)

    def close(self) -> None:
        """Read the rest, after the child has ended."""
        self.read()
        self._connection.close()

    @property
    def was_stopped_on_request(self) -> bool:
        return self.status is not None and self.status.was_stopped_on_request

    def _accept(self, line: bytes) -> None:
        try:
            self.status, self.parent_notified_at = HealthStatus.from_json(line), time.monotonic()
        except msgspec.DecodeError as error:  # a task has written to the socket
            logger.warning("health.report_invalid error=%s", error)


class HealthAggregator:
    """
    Sums up the children's reports. The supervisor's loop calls update(), any thread status().

    limit_seconds: silence after which a process has stalled, the supervisor included.
    """

    def __init__(self, limit_seconds: float, systemd: SystemdNotifier | None) -> None:
        self._limit, self._systemd = limit_seconds, systemd
        self._updated_at, self._status = time.monotonic(), HealthStatus(unready=(STARTING,))

    def update(self, children: Mapping[int, StatusReader], expected: int, *, is_stopping: bool) -> None:
        """Read the children's reports. children: by process id. expected: how many there should be."""
        stalled: list[Problem] = []
        unready: list[Problem] = []
        for pid, reader in children.items():
            reader.read()
            silent = time.monotonic() - reader.parent_notified_at
            if silent > self._limit:
                stalled.append(Problem(f"process {pid}", f"It has not moved for {silent:.0f} s."))
            elif reader.status is None:
                unready.append(Problem(f"process {pid}", "It is starting."))
            else:
                stalled += reader.status.stalled
                unready += [problem for problem in reader.status.unready if problem not in reader.status.stalled]
        if is_stopping:
            unready.append(Problem("supervisor", "It is stopping."))
        elif missing := expected - len(children):
            unready.append(Problem("supervisor", f"Of {expected} processes {missing} are to be started."))
        self._status, self._updated_at = (
            HealthStatus(tuple(stalled), (*stalled, *unready), is_stopping),
            time.monotonic(),
        )
        if self._systemd is not None:
            self._systemd.notify(self._status)

    def status(self) -> HealthStatus:
        """Return the sum. A supervisor that has stopped updating it is a problem of its own."""
        silent, status = time.monotonic() - self._updated_at, self._status
        if silent <= self._limit:
            return status
        problem = Problem("supervisor", f"It has not moved for {silent:.0f} s.")
        return HealthStatus((problem, *status.stalled), (problem, *status.unready), status.is_stopping)

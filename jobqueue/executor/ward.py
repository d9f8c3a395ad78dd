"""How all processes of one command are, for `--health` and systemd: one port, one answer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import NoReturn

from jobqueue.executor.health import Complaint, Health, Latest, serving
from jobqueue.executor.log import logger
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.systemd import Systemd

REPORT_BYTES = 65536
PATIENCE_SECONDS = 0.5  # with a server of probes that does not read
END_SECONDS = 3.0  # that the server of probes may take to end; it needs a moment


class Ward:
    """
    Hears from the children of a supervisor, sums up how they are, and passes it on.

    Probes are answered by a child of its own: a supervisor that forks has no threads. limit_seconds: silence
    after which a process counts as stalled.
    """

    def __init__(self, listener: socket.socket | None, systemd: Systemd | None, limit_seconds: float) -> None:
        self._listener, self._systemd, self._limit = listener, systemd, limit_seconds
        self._ears, self._mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ears.setblocking(False)
        self._mouth.setblocking(False)
        self._heard: dict[int, tuple[float, Health]] = {}  # by pid
        self._server: int | None = None
        self._to_server, _ = socket.socketpair()  # to nobody yet

    # --- in a child

    def report(self, health: Health) -> None:
        """Say how this process is; lost where nobody listens."""
        with contextlib.suppress(OSError):
            self._mouth.send(b"%d %s" % (os.getpid(), health.to_json()))

    def leave(self) -> None:
        """Let go of what belongs to the supervisor."""
        if self._listener is not None:
            self._listener.close()
        self._ears.close()
        self._to_server.close()

    # --- in the supervisor

    def look(self, children: Mapping[int, float], count: int, *, is_stopping: bool) -> None:
        """Sum up. children: those that live, by pid, and since when; count: how many there should be."""
        self._hear(children)
        stalled, unready = [], []
        for pid, began_at in children.items():
            heard_at, health = self._heard.get(pid, (began_at, None))
            if (silent := time.monotonic() - heard_at) > self._limit:
                stalled.append(Complaint(f"process {pid}", f"It has not moved for {silent:.0f} s."))
            elif health is None:
                unready.append(Complaint(f"process {pid}", "It is starting."))
            else:
                stalled += health.stalled
                unready += [complaint for complaint in health.unready if complaint not in health.stalled]
        if is_stopping:
            unready.append(Complaint("supervisor", "It is stopping."))
        elif missing := count - len(children):
            unready.append(Complaint("supervisor", f"Of {count} processes {missing} are to be started."))
        self._pass_on(Health(tuple(stalled), (*stalled, *unready), is_stopping))

    def close(self) -> None:
        """End the server of probes, which finishes what it has."""
        if self._server is not None:
            self._to_server.close()
            deadline = time.monotonic() + END_SECONDS
            while self._is_serving() and time.monotonic() < deadline:
                time.sleep(0.02)
            self._kill_server()

    def _hear(self, children: Mapping[int, float]) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                pid, _, text = self._ears.recv(REPORT_BYTES).partition(b" ")
                self._heard[int(pid)] = (time.monotonic(), Health.from_json(text))
        self._heard = {pid: heard for pid, heard in self._heard.items() if pid in children}

    def _pass_on(self, health: Health) -> None:
        if self._systemd is not None:
            self._systemd.tell(health)
        if self._listener is None:
            return
        if not self._is_serving():
            self._start_server(self._listener)
        try:
            self._to_server.sendall(health.to_json() + b"\n")
        except OSError:
            self._kill_server()  # it does not read; another one will

    def _is_serving(self) -> bool:
        if self._server is not None and os.waitpid(self._server, os.WNOHANG)[0]:
            self._server = None
        return self._server is not None

    def _kill_server(self) -> None:
        if self._is_serving() and self._server is not None:
            os.kill(self._server, signal.SIGKILL)
            os.waitpid(self._server, 0)
            self._server = None

    def _start_server(self, listener: socket.socket) -> None:
        self._to_server.close()
        self._to_server, from_supervisor = socket.socketpair()
        self._to_server.settimeout(PATIENCE_SECONDS)
        handled = {getattr(signal, name) for name in SignalPipe.HANDLED} | {signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        try:
            pid = os.fork()
            if pid == 0:
                self._to_server.close()
                be_server(listener, from_supervisor, self._limit, before)
            self._server = pid
        except OSError as error:
            logger.error("supervisor.launch the server of probes: %s", error)
        finally:
            from_supervisor.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def be_server(
    listener: socket.socket, from_supervisor: socket.socket, limit: float, mask: set[int | signal.Signals]
) -> NoReturn:
    """In a child: answer probes until the supervisor is gone, whatever signals a terminal sends to all."""
    code = 1
    try:
        for name in SignalPipe.HANDLED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        latest = Latest(limit)
        with serving(listener, latest.health), from_supervisor.makefile("rb") as lines:
            for line in lines:
                latest.say(Health.from_json(line))
        code = 0
    except BaseException:  # whatever it is, it must not run on as a second supervisor
        logger.exception("supervisor.health")
    finally:
        os._exit(code)

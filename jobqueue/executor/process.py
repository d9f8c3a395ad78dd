"""One executor process: its parts, its signals, its end."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import platform
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from types import FrameType
from uuid import UUID, uuid4

import django
import django.db
from django.db import connections

from jobqueue.engine import engine_for
from jobqueue.exceptions import ShuttingDown
from jobqueue.executor.heartbeat import Heart
from jobqueue.executor.hold import Hold
from jobqueue.executor.listener import Listener
from jobqueue.executor.outage import Line, Outage, Patience, first_line
from jobqueue.executor.pulse import Pulse
from jobqueue.executor.run import Worker
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.watchdog import Watchdog
from jobqueue.outcome import Sign

logger = logging.getLogger("jobqueue.executor")

STOP_SECONDS = 2.0  # for bodies to notice that they are told to stop
CONNECT_SECONDS = 60.0  # for the database to answer when we start
EXIT_OK, EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_REPLACE = 0, 69, 70, 75
EXIT_INTERRUPTED, EXIT_QUIT = 130, 131


class ExecutorProcess:
    """Runs tasks in this process until told to stop; run() returns the exit code."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings
        self.engine = engine_for(settings.backend)
        self.executor_id: UUID = uuid4()  # fresh per start: a name may be used twice, an id never
        host = socket.gethostname()
        self.name = (settings.name or f"{host}.{os.getpid()}")[:200]
        self.exit_code = EXIT_OK
        self._host = host[:255]
        self._holds: dict[UUID, Hold] = {}
        self._outage = Outage()
        limit = max(2.0, self.engine.options.heartbeat_timeout * 2 / 3)
        self._pulse_line = Line("pulse", self.engine.database, limit)
        self._heart_line = Line("heartbeat", self.engine.database, limit / 2)
        self._heart = Heart(self.engine, self.sign, self._holds, self._outage, self._heart_line)
        self._watchdog = Watchdog(
            self._holds,
            self._heart,
            [self._pulse_line, self._heart_line],
            settings.shutdown_timeout,
            self._on_stuck,
            self._on_failure,
        )
        worker = Worker(
            executor_id=str(self.executor_id), executor_name=self.name, options=self.engine.options
        )
        self.pulse = Pulse(
            self.engine,
            settings,
            worker,
            self.executor_id,
            self._holds,
            self._heart,
            self._outage,
            self._pulse_line,
            self._watchdog.kick,
        )
        self.listener: Listener | None = None
        if self.engine.options.notify and connections[self.engine.database].vendor == "postgresql":
            self.listener = Listener(self.engine, self.pulse.notice, self._heart.kick, self._outage)
        self._signals = SignalPipe()
        self._stop_by: float | None = None  # monotonic; when running bodies are told to stop
        self._told_to_stop = False
        self.has_live_threads = (
            False  # after run(): whether a body lives on, so that only _exit ends the process
        )

    def sign(self) -> Sign:
        state = "DRAINING" if self.pulse.is_draining else "RUNNING"
        return Sign(
            executor_id=self.executor_id,
            name=self.name,
            host=self._host,
            pid=os.getpid(),
            versions={
                "django": django.get_version(),
                "python": platform.python_version(),
                "jobqueue": jobqueue_version(),
            },
            queues=list(self.settings.queues or ()),
            slots=self.settings.threads,
            state=state,
        )

    # --- life

    def run(self, *, with_signals: bool = True) -> int:
        """Run until drained, stopped or failed. Raises nothing; the exit code tells."""
        with self._signals.installed() if with_signals else contextlib.nullcontext():
            if not self._wait_for_database():
                return self.exit_code or EXIT_UNAVAILABLE
            self._heart.start()
            self._watchdog.start()
            if self.listener is not None:
                self.listener.start()
            self.pulse.start()
            while self.pulse.is_alive():
                self._handle(self._signals.read(self._wait_seconds()))
                self._mind_the_deadline()
            return self._end()

    def stop(self) -> None:
        """Ask for a graceful stop, from any thread."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self.settings.shutdown_timeout
            self.pulse.drain()

    def abort(self) -> None:
        """Hand everything back now."""
        self._stop_by = time.monotonic()

    def _wait_for_database(self) -> bool:
        """Write the first beat, so that others see us before we claim; False when the database does not answer."""
        patience, since = Patience(), time.monotonic()
        while self._stop_by is None:
            try:
                self._heart.beat()
                connections[self.engine.database].close()
                return True
            except django.db.OperationalError as error:
                self._outage.begin("heartbeat", error)
                if time.monotonic() - since > CONNECT_SECONDS:
                    logger.error(
                        "The database did not answer for %.0f s: %s", CONNECT_SECONDS, first_line(error)
                    )
                    return False
                connections[self.engine.database].close()
                self._handle(self._signals.read(patience.next_seconds()))
        return False

    def _wait_seconds(self) -> float:
        if self._stop_by is None:
            return 1.0
        return min(1.0, max(0.01, self._stop_by - time.monotonic()))

    def _mind_the_deadline(self) -> None:
        """When the grace period is over: tell bodies to stop, then hand back what did not."""
        now = time.monotonic()
        if self._stop_by is None or now < self._stop_by:
            return
        if not self._told_to_stop:
            self._told_to_stop = True
            self.pulse.drain()
            running = [hold for hold in list(self._holds.values()) if hold.interrupt(ShuttingDown)]
            if running:
                logger.warning(
                    "executor.stopping %d tasks did not end in time and are handed back", len(running)
                )
            self._stop_by = now + STOP_SECONDS
        else:
            self.pulse.close_connections()
            self.pulse.abandon()
            self._stop_by = now + STOP_SECONDS
            if self._outage.is_on:
                # Nobody to hand back to; a rescue will find what we held.
                os._exit(self.exit_code or EXIT_OK)

    def _end(self) -> int:
        ended = self.pulse.close(timeout_seconds=0.5)
        if self.listener is not None:
            self.listener.stop()
        self._heart.stop()
        self._watchdog.stop()
        self._heart.join(5.0)
        try:
            self.engine.say_goodbye(self.executor_id)
        except django.db.Error as error:
            logger.info("executor.goodbye %s", first_line(error))
        connections[self.engine.database].close()
        failure = self.pulse.failure or self._heart.failure
        if failure is not None:
            self.exit_code = EXIT_INTERNAL
        counts = self.pulse.counts
        logger.info("executor.stopped %s finished=%d lost=%d", self.name, counts.finished, counts.lost)
        self.has_live_threads = not ended
        return self.exit_code

    # --- what others tell us

    def _on_stuck(self, hold: Hold) -> None:
        """A thread cannot be ended, only its process: drain, and be replaced; its claim goes with the process."""
        if self.exit_code == EXIT_REPLACE:
            return
        self.exit_code = EXIT_REPLACE
        logger.error(
            "executor.replaced task id=%s type=%s does not stop when told; this process finishes its other tasks and is "
            "replaced",
            hold.id,
            hold.claimed.task_type,
        )
        self.pulse.leave_behind(hold)
        self.pulse.drain()

    def _on_failure(self, failure: BaseException) -> None:
        logger.critical("executor.failed %s", first_line(failure))
        os._exit(EXIT_INTERNAL)

    def _handle(self, signals: bytes) -> None:
        for number in signals:
            match number:
                case signal.SIGTERM | signal.SIGHUP if self._stop_by is None:
                    self.stop()
                case signal.SIGINT if self._stop_by is None:
                    logger.info("Stopping; Ctrl-C again hands back what runs.")
                    self.stop()
                case signal.SIGINT:
                    self.exit_code = EXIT_INTERRUPTED
                    self.abort()
                case signal.SIGTERM | signal.SIGHUP:
                    self.abort()
                case signal.SIGQUIT:
                    self.exit_code = EXIT_QUIT
                    self.abort()
                case signal.SIGTSTP:
                    self.pulse.is_quiet = True
                    logger.info("executor.quiet claims nothing until SIGCONT")
                case signal.SIGCONT:
                    self.pulse.is_quiet = False
                    self.pulse.hurry()
                case signal.SIGUSR1:
                    self._dump()

    def _dump(self) -> None:
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        now = time.monotonic()
        for hold in list(self._holds.values()):
            state = f"{now - hold.started_at:.1f} s" if hold.started_at is not None else "in line"
            print(f"{hold.id} {hold.claimed.task_type} {hold.claimed.queue_name} {state}", file=sys.stderr)


class SignalPipe:
    """
    Signals as bytes in a pipe.

    The handlers do nothing else: an exception, a log line or a lock in a handler may hit the process
    in the middle of a COMMIT.
    """

    HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGCONT", "SIGUSR1")

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        numbers = [getattr(signal, name) for name in self.HANDLED if hasattr(signal, name)]
        before = {number: signal.signal(number, self._write) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _write(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, bytes([number]))

    def read(self, timeout_seconds: float) -> bytes:
        """Wait for signals; b"" when none came."""
        ready, _, _ = select.select([self._reader], [], [], timeout_seconds)
        return os.read(self._reader, 64) if ready else b""


def jobqueue_version() -> str:
    from jobqueue import __version__

    return __version__

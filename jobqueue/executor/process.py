"""One executor process: its parts, its signals, its end."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn
from uuid import UUID, uuid4

import django
from django.db import connections

from jobqueue import __version__
from jobqueue.engine import engine_for
from jobqueue.exceptions import ShuttingDown
from jobqueue.executor.errors import first_line_of
from jobqueue.executor.exit_status import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUIT,
    EXIT_REPLACE,
    EXIT_UNAVAILABLE,
    exit_now,
)
from jobqueue.executor.health.status import HealthMonitor, HealthReporter, HealthStatus, stall_limit
from jobqueue.executor.heartbeat import Heart
from jobqueue.executor.hold import Hold
from jobqueue.executor.listener import Listener
from jobqueue.executor.log import logger
from jobqueue.executor.outage import Line, Outage, connect_once
from jobqueue.executor.pulse import Pulse, Shared
from jobqueue.executor.run import Worker
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.signals import ORPHANED, SignalPipe, SignalPipeClosed
from jobqueue.executor.watchdog import Watchdog
from jobqueue.records import Command, ExecutorInfo

STOP_SECONDS = 2.0  # for bodies to notice that they are told to stop, and for the database to take back what is left
ABORT_SECONDS = 0.5  # the same after a second Ctrl-C
CTRL_C_AGAIN = "Stopping when the running tasks have ended. Press Ctrl-C again to release them now."


class ExecutorProcess:
    """
    Runs tasks in this process until told to stop; run() returns the exit code.

    signals: where the news comes from; without it only stop() and abort() end the process.
    is_supervised: a repeated SIGTERM or SIGINT means no more than the first, since the terminal or the
    service manager may send what our supervisor passes on too; SIGQUIT is its word for "now".
    on_ready: called once, when others can see us and before anything is claimed.
    report_health: called every second.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        signals: SignalPipe | None = None,
        *,
        is_supervised: bool = False,
        on_ready: Callable[[], None] = lambda: None,
        report_health: Callable[[HealthStatus], None] | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine_for(settings.backend)
        self.executor_id: UUID = uuid4()  # fresh per start: a name may be used twice, an id never
        host = socket.gethostname()
        self.name = (settings.name or f"{host}.{os.getpid()}")[:200]
        self.has_live_threads = (
            False  # after run(): whether a thread lives on, so that only exit_now() ends the process
        )
        self._host = host[:255]
        self._signals = signals or SignalPipe()
        self._is_supervised, self._on_ready = is_supervised, on_ready
        self._holds: dict[UUID, Hold] = {}
        self._outage = Outage()
        limit = max(2.0, self.engine.options.heartbeat_timeout * 2 / 3)
        pulse_line = Line("pulse", self.engine.database, limit, prepares=True)
        heart_line = Line("heartbeat", self.engine.database, limit / 2)
        self._heart = Heart(self.engine, self.sign, self._holds, self._outage, heart_line, self._signals.wake)
        self._watchdog = Watchdog(
            self._holds,
            self._heart,
            [pulse_line, heart_line],
            max(STOP_SECONDS, settings.shutdown_timeout),
            self._on_stuck,
            self._on_failure,
        )
        worker = Worker(
            executor_id=str(self.executor_id),
            executor_name=self.name,
            options=self.engine.options,
            backend=settings.backend,
        )
        self.pulse = Pulse(
            self.engine,
            settings,
            worker,
            Shared(holds=self._holds, heart=self._heart, outage=self._outage, line=pulse_line),
            self._watchdog.kick,
            self._on_failure,
            self._on_pulse_end,
            self.obey,
        )
        self.health = HealthMonitor(self.name, self.pulse, self._heart, self._outage, stall_limit(self.engine.options))
        self._reporter = HealthReporter(self.health.status, report_health) if report_health is not None else None
        self.listener: Listener | None = None
        if self.engine.options.notify and connections[self.engine.database].vendor == "postgresql":
            self.listener = Listener(self.engine, self.pulse.notice, self._heart.kick, self.pulse.hurry, self._outage)
        self._exit_code: int | None = None  # what a signal asked for, in place of 0
        self._is_asked = False  # to stop; else we may be draining in order to be replaced
        self._is_replaced = False
        self._is_over = False
        self._steps = (self._tell_bodies, self._hand_back, self._give_up)  # of a stop that takes too long
        self._step, self._step_seconds = 0, STOP_SECONDS
        self._next_step_at: float | None = None  # monotonic; None while we do not stop

    def sign(self) -> ExecutorInfo:
        return ExecutorInfo(
            executor_id=self.executor_id,
            name=self.name,
            host=self._host,
            pid=os.getpid(),
            versions={
                "django": django.get_version(),
                "python": platform.python_version(),
                "jobqueue": __version__,
            },
            queues=list(self.settings.queues or ()),
            queue_limits=self.settings.queue_limits,
            slots=self.settings.threads,
            state="DRAINING" if self.pulse.is_draining else "QUIET" if self.pulse.is_quiet else "RUNNING",
        )

    # --- life

    def run(self) -> int:
        """Run until drained, stopped or failed. Raises nothing; the exit code tells."""
        gc.freeze()  # what is loaded by now stays: looking through it again and again took a tenth of an actor's poll
        self._watchdog.start()
        self._heart.start()
        if self._reporter is not None:
            self._reporter.start()
        try:
            self._live()
        except SignalPipeClosed as error:
            self._on_failure(error)
        return self._end()

    def _live(self) -> None:
        if not self._wait_for_database():
            return
        self._on_ready()
        self._report()
        if self.listener is not None:
            self.listener.start()
        self._handle(self._signals.read(0.0))  # to be quiet, say, before anything is claimed
        self.pulse.start()
        while not self._is_over:
            self._handle(self._signals.read(self._wait_seconds()))
            self._mind_the_deadline()

    def obey(self, command: Command) -> None:
        """Do what people ask over the database, from any thread."""
        logger.info("executor.told %s: %s", self.name, command.lower())
        match command:
            case Command.QUIET:
                self.quiet()
            case Command.RESUME:
                self.go_on()
            case Command.STOP:
                self.health.was_stopped_on_request = True
                self.stop()

    def quiet(self) -> None:
        """Claim nothing more, and run what is claimed, from any thread."""
        self.pulse.be_quiet(True)

    def go_on(self) -> None:
        """Claim again, from any thread."""
        self.pulse.be_quiet(False)

    def stop(self) -> None:
        """Ask for a graceful stop, from any thread."""
        self._is_asked = True
        self._drain()

    def abort(self, exit_code: int | None = None) -> None:
        """Hand everything back now, from any thread."""
        self._exit_code, self._is_asked, self._step_seconds = exit_code, True, ABORT_SECONDS
        self._next_step_at = time.monotonic() + (ABORT_SECONDS if self._step else 0.0)
        self._drain()

    def replace(self, exit_code: int) -> None:
        """Hand everything back and end with this exit code, unless we are asked to stop; from any thread."""
        if not self._is_asked:
            self.abort(exit_code)

    def _drain(self) -> None:
        if self._next_step_at is None:
            self._next_step_at = time.monotonic() + self.settings.shutdown_timeout
        self.pulse.drain()
        self._heart.kick()  # people see at once that it is stopping
        self._report()
        self._signals.wake()

    def _report(self) -> None:
        if self._reporter is not None:
            self._reporter.wake()

    def _wait_for_database(self) -> bool:
        """
        Wait for the first beat, so that others see us before we claim; False when there is no use waiting.

        And for a second connection: with the heartbeat's alone we would seem to live, and do nothing.
        """
        give_up_at = time.monotonic() + self.settings.connect_timeout
        trouble = "No beat reached the database"
        while not self._is_asked:
            if self._heart.has_beaten:
                if (error := connect_once(self.engine.database)) is None:
                    break
                trouble = f"The heartbeat has the only connection to be had ({first_line_of(error)})"
            if time.monotonic() > give_up_at:
                logger.error("%s for %g s; giving up.", trouble, self.settings.connect_timeout)
                self._exit_code = EXIT_UNAVAILABLE
                return False
            self._handle(self._signals.read(min(1.0, max(0.01, give_up_at - time.monotonic()))))
        return not self._is_asked

    def _wait_seconds(self) -> float:
        if self._next_step_at is None:
            return 1.0
        return min(1.0, max(0.01, self._next_step_at - time.monotonic()))

    # --- the end

    def _mind_the_deadline(self) -> None:
        if self._next_step_at is not None and time.monotonic() >= self._next_step_at:
            self._next_step_at = time.monotonic() + self._step_seconds
            step, self._step = self._steps[self._step], self._step + 1
            step()

    def _tell_bodies(self) -> None:
        told = sum(hold.interrupt(ShuttingDown) for hold in list(self._holds.values()))
        if told:
            logger.warning("executor.stopping %d tasks did not end in time and are handed back", told)

    def _hand_back(self) -> None:
        """Hand back what did not notice that it was told to stop, after taking the database away from it."""
        self.pulse.cut_connections()
        self.pulse.abandon()

    def _give_up(self) -> NoReturn:
        logger.error("executor.left %d tasks could not be handed back; a rescue will find them", len(self._holds))
        exit_now(self._code())

    def _end(self) -> int:
        timeout = self._step_seconds / 2
        if self.listener is not None:
            self.listener.stop()
        ended = self.pulse.close(timeout)
        self._heart.stop()
        self._heart.join(timeout * 4)
        self._watchdog.stop()
        if self._reporter is not None:
            self._reporter.stop()
        self.has_live_threads = not ended or self._heart.is_alive()
        counts = self.pulse.counts
        logger.info(
            "executor.stopped %s finished=%d lost=%d undelivered=%d",
            self.name,
            counts.finished,
            counts.lost,
            counts.undelivered,
        )
        return self._code()

    def _code(self) -> int:
        if self.pulse.failure is not None:
            return EXIT_INTERNAL
        if self._exit_code is not None:
            return self._exit_code
        return EXIT_REPLACE if self._is_replaced and not self._is_asked else EXIT_OK

    # --- what others tell us

    def _on_pulse_end(self) -> None:
        self._is_over = True
        self._signals.wake()

    def _on_stuck(self, hold: Hold) -> None:
        """A thread cannot be ended, only its process: drain, and be replaced; its claim goes with the process."""
        if hold.id not in self.pulse.left_behind:
            logger.error(
                "executor.stuck task id=%s type=%s does not stop when told; this process finishes its other tasks and "
                "is replaced",
                hold.id,
                hold.claimed.task_type,
            )
        self.pulse.leave_behind(hold)
        self._is_replaced = True
        self._drain()

    def _on_failure(self, failure: BaseException) -> NoReturn:
        logger.critical("executor.failed %s", first_line_of(failure))
        exit_now(EXIT_INTERNAL)

    def _handle(self, news: bytes) -> None:
        for number in news:
            match number:
                case signal.SIGTERM | signal.SIGHUP if self._is_supervised or not self._is_asked:
                    self.stop()
                case signal.SIGTERM | signal.SIGHUP:
                    self.abort()
                case signal.SIGINT if self._is_supervised:
                    self.stop()
                case signal.SIGINT if not self._is_asked:
                    logger.warning(CTRL_C_AGAIN)
                    self.stop()
                case signal.SIGINT:
                    self.abort(EXIT_INTERRUPTED)
                case signal.SIGQUIT:
                    self.abort(EXIT_QUIT)
                case signal.SIGTSTP:
                    self.quiet()
                case signal.SIGCONT:
                    self.go_on()
                case signal.SIGUSR1:
                    with contextlib.suppress(OSError, ValueError):  # nobody reads what we say
                        self._dump()
                case _ if number == ORPHANED:
                    logger.error("The supervisor is gone; stopping.")
                    self.stop()

    def _dump(self) -> None:
        """Write to the terminal or the service's log where every thread is, and what runs."""
        out = sys.__stderr__
        if out is None:
            return
        faulthandler.dump_traceback(file=out, all_threads=True)
        now = time.monotonic()
        for hold in list(self._holds.values()):
            state = f"{now - hold.started_at:.1f} s" if hold.started_at is not None else "in line"
            out.write(f"{hold.id} {hold.claimed.task_type} {hold.claimed.queue_name} {state}\n")
        out.flush()

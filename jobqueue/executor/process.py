"""One executor process: its parts, its signals, its end."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cached_property
from uuid import UUID, uuid4

import django
from django.db import connections

from jobqueue import __version__
from jobqueue.api.schedule_deployments import VERSION, DeclaredSchedules
from jobqueue.declarations import registry
from jobqueue.engine import engine_for
from jobqueue.exceptions import ShuttingDown
from jobqueue.executor import exit_status as codes
from jobqueue.executor.database.connection import DatabaseState, GuardedConnection, connect_once
from jobqueue.executor.exit_status import exit_now
from jobqueue.executor.health.status import HealthMonitor, HealthReporter, HealthStatus, stall_limit
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.listener import Listener
from jobqueue.executor.loop import ExecutorLoop
from jobqueue.executor.memory import resident_mib
from jobqueue.executor.pools.processes import KILL_SECONDS, BodyProcesses
from jobqueue.executor.reports import keeping_body_logs
from jobqueue.executor.running.attempt import ExecutorIdentity, RunningTask
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.signals import ORPHANED, SignalPipe, SignalPipeClosed
from jobqueue.executor.step_recorder import StepRecorder
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.executor.watchdog import Watchdog
from jobqueue.values.records import ExecutorInfo
from jobqueue.values.states import Command
from jobqueue.values.text import printable

logger = get_logger(__name__)

STEP_SECONDS = 2.0  # from one step of a stop that takes too long to the next
ABORT_STEP_SECONDS = 0.5  # the same after a second Ctrl-C
CTRL_C_AGAIN = "Stopping when the running tasks have ended. Press Ctrl-C again to release them now."


class ExecutorProcess:
    """
    Runs tasks in this process until it is asked to stop. run() returns the exit code.

    is_supervised: a repeated SIGTERM or SIGINT means no more than the first, because the terminal or the service
    manager may also send what the supervisor passes on. The supervisor sends SIGQUIT to release everything now.
    on_ready: called once, when other executors can see this one, before it claims. report_health: called every second.
    is_program: this process does nothing else. is_guest: it belongs to a web server, and no failure ends it.

    It has more than 20 methods and 15 attributes because it joins all parts and ends them step by step.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        signals: SignalPipe | None = None,
        *,
        is_supervised: bool = False,
        on_ready: Callable[[], None] = lambda: None,
        report_health: Callable[[HealthStatus], None] | None = None,
        is_program: bool = False,
        is_guest: bool = False,
    ) -> None:
        self.settings, self.engine = settings, engine_for(settings.backend)
        self.executor_id: UUID = uuid4()  # new at each start: a name may be used twice, an id never
        self.name = (settings.name or f"{socket.gethostname()}.{os.getpid()}")[:200]
        self.has_live_threads = False  # after run(): a thread remains, and only exit_now() ends the process
        self._signals, self._is_supervised, self._on_ready = signals or SignalPipe(), is_supervised, on_ready
        self._has_own_signals = signals is None
        self._is_program, self._is_guest = is_program, is_guest
        self._exit_code: int | None = None  # what a signal asked for, in place of 0
        self._is_stop_requested = self._is_replace_requested = False
        self._has_loop_ended = False
        self._steps = iter((self._interrupt_tasks, self._release_tasks, self._give_up))  # of a stop that takes too long
        self._step_seconds, self._has_stepped = STEP_SECONDS, False
        self._next_step_at: float | None = None  # monotonic; None until it stops
        self._build_parts(report_health)  # last: a thread of theirs that fails at once ends the process

    def _build_parts(self, report_health: Callable[[HealthStatus], None] | None) -> None:
        options, database = self.engine.options, self.engine.database
        self._running_tasks = RunningTasks(self.engine)
        self._database_state = DatabaseState()
        limit = max(2.0, options.heartbeat_timeout * 2 / 3)
        of_loop = GuardedConnection("loop", database, limit, prepares=True)
        of_heartbeat = GuardedConnection("heartbeat", database, limit / 2)
        of_recorder = GuardedConnection("recorder", database, limit / 2, prepares=True)
        self._heartbeat = HeartbeatThread(
            self.engine,
            self.executor_info,
            self._running_tasks,
            self._database_state,
            of_heartbeat,
            self._signals.end_read,
        )
        grace = max(STEP_SECONDS, self.settings.shutdown_timeout)
        self._watchdog = Watchdog(
            self._running_tasks,
            self._heartbeat,
            (of_loop, of_heartbeat, of_recorder),
            grace,
            self._on_stuck,
            self._on_failure,
        )
        self._processes = BodyProcesses(self.settings.backend, min(KILL_SECONDS, 0.8 * grace))
        self._recorder = StepRecorder(self.engine, self.executor_id, of_recorder)
        self._identity = identity = ExecutorIdentity(
            engine=self.engine,
            executor_id=self.executor_id,
            name=self.name,
            recorder=self._recorder,
            in_process=self._processes.wrap,
        )
        self.loop = ExecutorLoop(
            self.settings,
            identity,
            running_tasks=self._running_tasks,
            heartbeat=self._heartbeat,
            database=self._database_state,
            connection=of_loop,
            on_deadline=self._watchdog.check_soon,
            on_failure=self._on_failure,
            on_end=self._on_loop_end,
            on_command=self.handle_command,
        )
        self.listener: Listener | None = None
        if options.notify and connections[database].vendor == "postgresql":
            self.listener = Listener(
                self.engine,
                self.loop.on_notification,
                self._heartbeat.beat_soon,
                self.loop.admit_soon,
                self.loop.check_everything_soon,
                self._database_state,
                self.loop.outcomes.await_end,
            )
        self.health = HealthMonitor(self.name, self.loop, self._heartbeat, self._database_state, stall_limit(options))
        self._reporter = HealthReporter(self.health.status, report_health)

    @cached_property
    def _versions(self) -> dict[str, str]:
        return {
            "django": django.get_version(),
            "python": platform.python_version(),
            "jobqueue": __version__,
            VERSION: DeclaredSchedules.of(self.settings.backend).digest,
        }

    def executor_info(self) -> ExecutorInfo:
        return ExecutorInfo(
            executor_id=self.executor_id,
            name=self.name,
            host=socket.gethostname()[:255],
            pid=os.getpid(),
            versions=self._versions,
            queues=list(self.settings.queues or ()),
            queue_limits=self.settings.queue_limits,
            slots=self.settings.threads,
            async_slots=self.settings.async_slots,
            waiting_for_connections=self.loop.threads.take_waiting_for_connections(),
            problem=self.health.problem(),
            task_types=[*registry.by_name()],
            state="STOPPING" if self.loop.is_stopping else "PAUSED" if self.loop.is_paused else "RUNNING",
        )

    # --- from the start to the end

    def run(self) -> int:
        """Run until no work is left (--burst), a stop, or a failure. Raises nothing."""
        if self._is_program:
            gc.freeze()  # what is loaded by now stays: collecting it again and again took a tenth of an actor's poll
        self._watchdog.start()
        self._heartbeat.start()
        self._reporter.start()
        try:
            if self._wait_for_database():
                logs = keeping_body_logs(self._identity.reports, self._identity.log_of_caller)
                with logs if self._identity.options.keep_log_lines else contextlib.nullcontext():
                    self._run_loop()
        except SignalPipeClosed as error:
            self._on_failure(error)
        return self._end()

    def _wait_for_database(self) -> bool:
        """
        Wait for the first heartbeat, so that other executors see this one before it claims. Return False to give up.

        Wait for a second connection, too: with only that of the heartbeat this executor would seem to work.
        """
        give_up_at = time.monotonic() + self.settings.connect_timeout
        problem = ""
        while not self._is_stop_requested:
            if self._heartbeat.has_beaten:
                if (error := connect_once(self.engine.database)) is None:
                    return True
                problem = f"The heartbeat has the only connection that the server gives ({format_first_line(error)})"
            if time.monotonic() > give_up_at:
                logger.error(
                    "database.connect_timed_out after_s=%g error=%s",
                    self.settings.connect_timeout,
                    problem or self._heartbeat.problem,
                )
                self._exit_code = codes.EXIT_UNAVAILABLE
                return False
            self._handle(self._signals.read(min(1.0, max(0.01, give_up_at - time.monotonic()))))
        return False

    def _run_loop(self) -> None:
        self._on_ready()
        self._reporter.report_soon()
        if self.listener is not None:
            self.listener.start()
        self._handle(self._signals.read(0.0))  # a pause, for example, before anything is claimed
        self._recorder.start()
        self.loop.start()
        while not self._has_loop_ended:
            wait = 1.0 if self._next_step_at is None else self._next_step_at - time.monotonic()
            self._handle(self._signals.read(min(1.0, max(0.01, wait))))
            self._escalate_stop()
            self._check_memory()

    def _end(self) -> int:
        timeout = self._step_seconds / 2
        if self.listener is not None:
            self.listener.stop()
        has_ended = self.loop.threads.close(timeout)
        self._processes.close()
        self._recorder.stop()
        self._heartbeat.stop()
        self._heartbeat.join(timeout * 4)
        self._watchdog.stop()
        self._reporter.stop()
        self.has_live_threads = not has_ended or self._heartbeat.is_alive()
        counts = self.loop.outcomes.counts
        numbers = (counts.finished, counts.lost, counts.undelivered)
        logger.info("executor.stopped executor=%s finished=%d lost=%d undelivered=%d", self.name, *numbers)
        if self._has_own_signals:
            self._signals.close()
        return self._code()

    def _code(self) -> int:
        if self.loop.failure is not None:
            return codes.EXIT_INTERNAL
        if self._exit_code is not None:
            return self._exit_code
        return codes.EXIT_REPLACE if self._is_replace_requested and not self._is_stop_requested else codes.EXIT_OK

    # --- requests, from any thread

    def handle_command(self, command: Command) -> None:
        """Do what the admin or the command line asked for."""
        logger.info("executor.command_received executor=%s command=%s", self.name, command.lower())
        match command:
            case Command.PAUSE:
                self.loop.set_paused(True)
            case Command.RESUME:
                self.loop.set_paused(False)
            case Command.STOP:
                self.health.was_stopped_on_request = True
                self.stop()

    def stop(self) -> None:
        """Stop when the running tasks have ended, or when their time is over."""
        self._is_stop_requested = True
        self._stop_claiming()

    def abort(self, exit_code: int | None = None) -> None:
        """Release all tasks now, and end."""
        self._is_stop_requested, self._exit_code = True, exit_code
        self._release_now()

    def replace(self) -> None:
        """Release all tasks now, and end so that another process takes this one's place."""
        self._is_replace_requested = True
        if not self._is_stop_requested:
            self._release_now()

    def _release_now(self) -> None:
        self._step_seconds = ABORT_STEP_SECONDS
        self._next_step_at = time.monotonic() + (ABORT_STEP_SECONDS if self._has_stepped else 0.0)
        self._stop_claiming()

    def _stop_claiming(self) -> None:
        if self._next_step_at is None:
            self._next_step_at = time.monotonic() + self.settings.shutdown_timeout
        self.loop.stop_claiming()
        self._heartbeat.beat_soon()  # the row shows at once that it stops
        self._reporter.report_soon()
        self._signals.end_read()

    # --- a stop that takes too long

    def _escalate_stop(self) -> None:
        if self._next_step_at is not None and time.monotonic() >= self._next_step_at:
            self._next_step_at, self._has_stepped = time.monotonic() + self._step_seconds, True
            next(self._steps)()

    def _check_memory(self) -> None:
        """End after the running tasks if this process uses too much memory. It runs at least one task."""
        limit = self.settings.max_memory
        if limit is None or self.loop.stop.is_last or not self.loop.claims.number:
            return
        if (used := resident_mib()) > limit:
            logger.info(
                "executor.memory_exceeded executor=%s used_mib=%.0f limit_mib=%d tasks=%d",
                self.name,
                used,
                limit,
                self.loop.claims.number,
            )
            self.loop.end_after_these()

    def _interrupt_tasks(self) -> None:
        count = sum(running.interrupt(ShuttingDown) for running in self._running_tasks.snapshot().values())
        if count:
            logger.warning("executor.tasks_interrupted tasks=%d", count)

    def _release_tasks(self) -> None:
        """Release the tasks that ignored the interruption, and close their connections first."""
        self.loop.threads.cut_connections()
        self._processes.close()
        self.loop.abandon()

    def _give_up(self) -> None:
        logger.error(
            "executor.release_failed tasks=%d hint=Other executors will rescue them.", len(self._running_tasks)
        )
        if self._is_guest:
            self._has_loop_ended = True
        else:
            exit_now(self._code())

    # --- events

    def _on_loop_end(self) -> None:
        self._has_loop_ended = True
        self._signals.end_read()

    def _on_stuck(self, running: RunningTask) -> None:
        """Stop claiming, and be replaced: only the end of the process ends a thread, and ends its claim."""
        if running.id not in self.loop.stop.abandoned_tasks:
            names = printable(running.claimed.task_type), running.id
            logger.error(
                "executor.stuck task=%s id=%s hint=The task does not stop. This process will be replaced.", *names
            )
        self.loop.abandon_task(running)
        self._is_replace_requested = True
        self._stop_claiming()

    def _on_failure(self, failure: BaseException) -> None:
        logger.critical("executor.failed error=%s", format_first_line(failure))
        if self._is_guest:
            self.abort(codes.EXIT_INTERNAL)
        else:
            exit_now(codes.EXIT_INTERNAL)

    def _handle(self, events: bytes) -> None:
        for number in events:
            match number:
                case signal.SIGTERM | signal.SIGHUP | signal.SIGINT if self._is_supervised:
                    self.stop()
                case signal.SIGTERM | signal.SIGHUP | signal.SIGINT if not self._is_stop_requested:
                    if number == signal.SIGINT:
                        logger.warning("executor.stop_requested hint=%s", CTRL_C_AGAIN)
                    self.stop()
                case signal.SIGTERM | signal.SIGHUP | signal.SIGINT:
                    self.abort(codes.EXIT_INTERRUPTED if number == signal.SIGINT else None)
                case signal.SIGQUIT:
                    self.abort(codes.EXIT_QUIT)
                case signal.SIGTSTP | signal.SIGCONT:
                    self.loop.set_paused(number == signal.SIGTSTP)
                case signal.SIGUSR1:
                    with contextlib.suppress(OSError, ValueError):  # stderr is closed
                        self._print_threads_and_tasks()
                case _ if number == ORPHANED:
                    logger.error("supervisor.lost hint=This executor stops.")
                    self.stop()

    def _print_threads_and_tasks(self) -> None:
        out = sys.__stderr__
        if out is None:
            return
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # faulthandler may crash while other threads run
            out.write(f"Thread {names.get(ident, ident)} (most recent call last):\n")
            traceback.print_stack(frame, file=out)
        now = time.monotonic()
        for running in self._running_tasks.snapshot().values():
            state = f"{now - running.started_at:.1f} s" if running.started_at is not None else "waiting"
            out.write(f"{running.id} {running.claimed.task_type} {running.claimed.queue_name} {state}\n")
        out.flush()

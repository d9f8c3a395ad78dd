"""`manage.py run_executors`: read the flags, and start an executor or a supervisor."""

from __future__ import annotations

import argparse
import difflib
import logging
import math
import os
import platform
import random
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import Any, NoReturn
from uuid import UUID

import django
from django.conf import settings as django_settings
from django.core import mail
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import color_style, no_style
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue import __version__
from jobqueue.api import declared_queues
from jobqueue.declarations import registry
from jobqueue.engine import engine_for
from jobqueue.executor.child_processes import end_child_processes
from jobqueue.executor.exit_status import EXIT_REPLACE, become_program, exit_despite_threads, exit_now, flush
from jobqueue.executor.health.probes import Address, listen, parse_address, serving, systemd_report, url_of
from jobqueue.executor.health.status import HealthAggregator, freeze_limit, stall_limit
from jobqueue.executor.process import ExecutorProcess
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.supervisor import CHILD_VARIABLE, Supervisor, SupervisorLink, start_child, watch_code
from jobqueue.executor.telemetry.console_log import ConsoleHandler, JsonFormatter, TextFormatter, copy_of_stderr
from jobqueue.executor.telemetry.emails import limit_emails
from jobqueue.management.cli.arguments import parse_duration
from jobqueue.management.cli.backends import find_engine
from jobqueue.management.cli.verbs import report_usage_in_one_line
from jobqueue.values import posix

PREFIX = "JOBQUEUE_"  # of the environment's variables
LONGEST_WAIT_SECONDS = 30.0  # before a child is replaced that failed again and again
RELOAD_WAIT_SECONDS = 5.0  # with --reload: the code may be half saved
MIN_POLL_SECONDS = 0.01
MIN_SHARE = 0.75  # of --max-tasks, after which one of several processes ends
MIN_MEMORY_SHARE = 0.9  # of --max-memory; less would be near what the process needs anyway
LOG_QUERIES = "jobqueue.run_executors"
STUCK = (
    "This executor has ended, because a task does not stop. The task's thread goes on in this program until the "
    "program ends. Another executor takes the task when this one counts as lost."
)
LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}


def read_count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"must be a whole number, 1 or more, not {text!r}")
    return value


def seconds(text: str) -> float:
    return parse_duration(text).total_seconds()


def poll_interval(text: str) -> float:
    if (value := seconds(text)) < MIN_POLL_SECONDS:
        raise ValueError(f"must be {MIN_POLL_SECONDS:g}s or more, not {text!r}")
    return value


def read_queue(text: str) -> tuple[str, int | None]:
    """Read NAME, or NAME:LIMIT."""
    name, colon, limit = text.partition(":")
    if not name or (colon and not (limit.isascii() and limit.isdigit() and int(limit) > 0)):
        raise ValueError(
            f"must be NAME or NAME:LIMIT with a limit of 1 or more, not {text!r}. If the name of a queue contains a "
            "colon, start executors without --queue"
        )
    return name, int(limit) if colon else None


def log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError(f"must be text or json, not {text!r}")
    return text


def switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError("must be 1 or 0")
    return text.lower() in ("1", "true", "yes", "on")


def argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse print the message of a ValueError, as it does for an ArgumentTypeError."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(error) from None

    return parse


class Append(argparse.Action):
    """Like "append", but values from the command line replace those from the environment."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        items = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [values] if items is self.default else [*items, values])


# Names, how to read a value, default, help.
FLAGS: list[tuple[tuple[str, ...], Callable[[str], Any], Any, str]] = [
    (
        ("-q", "--queue"),
        read_queue,
        None,
        "serve this queue only, LIMIT of its tasks at once in each process; repeatable",
    ),
    (("-t", "--threads"), read_count, 8, "number of worker threads (8)"),
    (("--async-slots",), read_count, 100, "how many async tasks run at once (100)"),
    (("-p", "--processes"), read_count, 1, "number of processes (1)"),
    (("--burst",), switch, False, "exit when no task is ready, running, or due within a second"),
    (("--max-tasks",), read_count, None, "stop each process after this number of tasks"),
    (("--max-memory",), read_count, None, "stop each process that uses more than so many MiB, after its tasks"),
    (("--shutdown-timeout",), seconds, "25s", "time for running tasks to end at a stop (25s)"),
    (("--connect-timeout",), seconds, "60s", "time to wait for the database at the start (60s)"),
    (("--poll-interval",), poll_interval, None, "longest sleep without a notification (POLL_INTERVAL)"),
    (("--backend",), str, "default", "alias in TASKS (default)"),
    (("--name",), str, None, "name of the executor in logs and in the admin (host.pid)"),
    (("--health",), parse_address, None, "answer /livez and /readyz there, for all processes; PORT: on 127.0.0.1"),
    (("--log-format",), log_format, "text", "text or json, if LOGGING has no handler for jobqueue (text)"),
    (("--reload",), switch, False, "restart when code changes, for development"),
]
METAVARS: dict[Callable[[str], Any], str] = {
    read_queue: "NAME[:LIMIT]",
    parse_address: "HOST:PORT",
    seconds: "TIME",
    poll_interval: "TIME",
}


def variable_name(names: tuple[str, ...]) -> str:
    return PREFIX + names[-1].removeprefix("--").replace("-", "_").upper()


VARIABLES = {variable_name(names) for names, *_ in FLAGS}


def misspelt_variables(names: Iterable[str], flags: Collection[str]) -> str:
    """Return one line about the variables that are almost flags, "" if there are none."""
    endings = {flag.removeprefix(PREFIX): flag for flag in flags}
    unknown = {name for name in names if name.startswith(PREFIX)} - set(flags)
    misspelt = [
        f"{name} (did you mean {endings[ending]}?)"
        for name in sorted(unknown)
        for ending in difflib.get_close_matches(name.removeprefix(PREFIX).upper(), endings, 1, 0.6)
    ]
    return f"run_executors ignores variables of the environment: {', '.join(misspelt)}." if misspelt else ""


class Command(BaseCommand):
    help = (
        "Run tasks until you stop the command. On SIGTERM, SIGHUP or Ctrl-C, running tasks may end within "
        "--shutdown-timeout. A second such signal, or SIGQUIT, releases all tasks at once. Other executors start "
        "released tasks again. SIGTSTP pauses until SIGCONT. SIGUSR1 prints all threads and running tasks. Exit codes: "
        "0 done, 1 wrong configuration, 2 wrong usage, 69 no database at the start, 70 internal error, 130 after a "
        "second Ctrl-C, 131 after SIGQUIT. Each option is also an environment variable, in brackets below."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the flags. The environment replaces their defaults."""
        report_usage_in_one_line(parser)
        for names, read, default, text in FLAGS:
            variable = variable_name(names)
            if value := os.environ.get(variable, "").strip():
                try:
                    default = (
                        [read(item) for item in value.replace(",", " ").split()] if read is read_queue else read(value)
                    )
                except (ValueError, argparse.ArgumentTypeError) as error:
                    parser.error(f"{variable}={value!r} in the environment: {error}")
            more: dict[str, Any] = {"action": "store_true"}
            if read is not switch:
                more = {"action": Append if read is read_queue else "store", "type": argument(read)}
                more["metavar"] = METAVARS.get(read)
            parser.add_argument(*names, default=default, help=f"{text} [{variable}]", **more)

    def check(self, *args: Any, **options: Any) -> None:
        if CHILD_VARIABLE not in os.environ:  # its supervisor has checked
            super().check(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        for problem in problems_of_caller(options):
            raise CommandError(problem)
        link = SupervisorLink.from_environment()
        self._is_program = getattr(self, "_called_from_command_line", False)  # else it has more to do afterwards
        pipe = SignalPipe(lifeline=link.connection.fileno() if link else None)
        with closing(pipe), pipe.installed() as signals, ExitStack() as undo:
            self._set_up_logging(options, undo)
            settings = self._settings(options)
            if link is not None:
                self._run_child(link, settings, options, signals)
            if line := misspelt_variables(os.environ, VARIABLES):
                self.stderr.write(line)
            if django_settings.DEBUG and not options["reload"]:
                self.stderr.write("DEBUG is on: use --reload while developing, and DEBUG=False in production.")
            listener = self._listen(options["health"])  # before anything else: the port may be taken
            with closing(listener) if listener else nullcontext():
                start = self._supervise if options["processes"] > 1 or options["reload"] else self._run
                code = start(settings, options, signals, listener)
            if self._is_program:
                undo.pop_all()  # the end of the program logs, too
        if code:
            sys.exit(code)

    def _listen(self, address: Address | None) -> socket.socket | None:
        try:
            return listen(address) if address else None
        except OSError as error:
            raise CommandError(f"--health {address}: {error.strerror or error}.") from error

    def _run(
        self, settings: ExecutorSettings, options: dict[str, Any], signals: SignalPipe, listener: socket.socket | None
    ) -> int:
        executor = ExecutorProcess(
            settings,
            signals,
            on_ready=partial(self._print_ready, settings),
            report_health=systemd_report(),
            is_program=self._is_program,
        )
        self._print_banner(settings, executor.name, 1, listener)
        if self._is_program:
            become_program()
        with serving(listener, executor.health.status):
            code = executor.run()
        if not self._is_program:
            if code == EXIT_REPLACE or executor.has_live_threads:
                raise CommandError(STUCK)
            return code
        end_child_processes()
        if code == EXIT_REPLACE:
            # A thread does not stop: a new program in this process ends it, and continues with the queue.
            flush()
            os.execv(sys.executable, sys.orig_argv)
        if executor.has_live_threads:
            exit_now(code)
        exit_despite_threads(code)
        return code

    def _supervise(
        self, settings: ExecutorSettings, options: dict[str, Any], signals: SignalPipe, listener: socket.socket | None
    ) -> int:
        name = settings.name or f"{socket.gethostname()}.{os.getpid()}"
        self._print_banner(settings, name, options["processes"], listener)
        health = HealthAggregator(stall_limit(engine_for(settings.backend).options), systemd_report())
        with signals.installed(signal.SIGCHLD), serving(listener, health.status):
            return Supervisor(
                options["processes"],
                start_child,
                signals,
                health,
                shutdown_timeout=settings.shutdown_timeout,
                longest_wait_seconds=RELOAD_WAIT_SECONDS if options["reload"] else LONGEST_WAIT_SECONDS,
                is_finite=settings.burst,
                frozen_after=freeze_limit(engine_for(settings.backend).options),
            ).run()

    def _run_child(
        self, link: SupervisorLink, settings: ExecutorSettings, options: dict[str, Any], signals: SignalPipe
    ) -> NoReturn:
        if settings.name and options["processes"] > 1:
            settings = replace(settings, name=f"{settings.name}.{link.number + 1}")
        if options["processes"] > 1:  # they should not all end at the same time
            settings = replace(
                settings,
                max_tasks=lower(settings.max_tasks, MIN_SHARE),
                max_memory=lower(settings.max_memory, MIN_MEMORY_SHARE),
            )
        on_ready = partial(self._print_ready, settings) if link.number == 0 else lambda: None
        executor = ExecutorProcess(
            settings, signals, is_supervised=True, on_ready=on_ready, report_health=link.report, is_program=True
        )
        if link.frozen:
            executor.loop.isolate_tasks_of(UUID(link.frozen))
        if options["reload"]:
            watch_code(executor)
        become_program()
        exit_now(executor.run())

    def _settings(self, options: dict[str, Any]) -> ExecutorSettings:
        backend = options["backend"]
        declared = declared_queues(find_engine(backend).alias)
        limits: dict[str, int | None] = {}
        for name, limit in options["queue"] or ():
            if limits.setdefault(name, limit) != limit:
                raise CommandError(f"Queue {name!r} is named twice, with different limits.")
            if declared and name not in declared:
                raise CommandError(
                    f"Unknown queue {name!r}. QUEUES of TASKS[{backend!r}]: {', '.join(sorted(declared))}."
                )
        return ExecutorSettings(
            queues=tuple(limits) or None,
            queue_limits={name: limit for name, limit in limits.items() if limit is not None},
            **{field.name: options[field.name] for field in fields(ExecutorSettings) if field.name in options},
        )

    def _print_banner(
        self, settings: ExecutorSettings, name: str, processes: int, listener: socket.socket | None
    ) -> None:
        for line in banner_lines(settings, name, processes):
            self.stdout.write(line)
        if listener is not None:
            self.stdout.write(f"health      {url_of(listener)}/livez, /readyz")
        self.stdout.flush()

    def _print_ready(self, settings: ExecutorSettings) -> None:
        end = "ends when no task is left to run" if settings.burst else "Ctrl-C to stop"
        self.stdout.write(f"ready, waiting for work ({end})")
        self.stdout.flush()

    def _set_up_logging(self, options: dict[str, Any], undo: ExitStack) -> None:
        """Log to stderr unless the site's LOGGING has a handler: Django's default hides INFO of other packages."""
        limit_emails(undo)
        logger = logging.getLogger("jobqueue")
        if logger.handlers or logging.getLogger().handlers:
            return
        verbosity: int = options["verbosity"]
        has_colors = options["force_color"] or (self.stderr.isatty() and not options["no_color"])
        style = color_style(force_color=True) if has_colors else no_style()
        formatter = JsonFormatter() if options["log_format"] == "json" else TextFormatter(style)
        handler = ConsoleHandler(formatter, copy_of_stderr())
        undo.callback(handler.end)
        log_only_to(handler, logger, LEVELS[verbosity], undo)
        if verbosity >= 3:
            log_only_to(handler, logging.getLogger("django.db.backends"), logging.DEBUG, undo)
            connection_created.connect(log_queries, dispatch_uid=LOG_QUERIES)
            undo.callback(connection_created.disconnect, dispatch_uid=LOG_QUERIES)


def lower(limit: int | None, min_share: float) -> int | None:
    """Return a random limit between a share of the given one and all of it."""
    return None if limit is None else math.ceil(limit * random.uniform(min_share, 1.0))


def problems_of_caller(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield why executors cannot run in this process, before anything is changed in it."""
    if missing := posix.missing():
        yield (
            f"run_executors needs a POSIX system, such as Linux or macOS: this one lacks {', '.join(missing)}. "
            "Run it in WSL or in a container. Enqueueing, the admin, other commands and jobqueue.testing work here."
        )
    in_test = "In a test, call jobqueue.testing.run_until_idle() instead."
    opened = [connection for connection in connections.all(initialized_only=True) if connection.connection is not None]
    if any(connection.in_atomic_block or not connection.get_autocommit() for connection in opened):
        yield (
            "run_executors cannot run inside a transaction: its threads have connections of their own, which do not "
            f"see what the transaction has written. {in_test}"
        )
    database: Any = connections[find_engine(options["backend"]).database]
    if database.vendor == "sqlite" and database.is_in_memory_db():
        yield (
            f"run_executors cannot use the database {database.alias!r}: it is SQLite in memory, which ends with its "
            f"last connection. Use PostgreSQL, or a database file. {in_test}"
        )
    if hasattr(mail, "outbox") and (options["processes"] > 1 or options["reload"]):
        yield (
            "run_executors cannot start processes in a test: they would work on the database of the settings, not on "
            f"that of the test. {in_test}"
        )


def log_only_to(handler: logging.Handler, logger: logging.Logger, level: int, undo: ExitStack) -> None:
    """Let a logger write to one handler more, and not to those of its parents. undo: gets what restores it."""
    undo.callback(setattr, logger, "propagate", logger.propagate)
    undo.callback(logger.setLevel, logger.level)
    undo.callback(logger.removeHandler, handler)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def log_queries(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    connection.force_debug_cursor = True


def banner_lines(settings: ExecutorSettings, name: str, processes: int) -> Iterator[str]:
    """Yield what a start prints: the executor, versions, database, queues and slots."""
    database, limits = connections[engine_for(settings.backend).database], settings.queue_limits
    suffix = " each" if processes > 1 else ""
    names = [f"{queue} (max {limits[queue]}{suffix})" if queue in limits else queue for queue in settings.queues or ()]
    yield (
        f"jobqueue {__version__} · executor {name} · django {django.get_version()} · python "
        f"{platform.python_version()} · {database.display_name} (database {database.alias!r})"
    )
    yield f"queues      {', '.join(names) or 'every queue':<36} registered tasks: {len(registry.all())}"
    yield f"slots       {processes} × ({settings.threads} threads + {settings.async_slots} async)"
    yield f"shutdown    {settings.shutdown_timeout:g} s for running tasks after SIGTERM; Ctrl-C twice releases them"

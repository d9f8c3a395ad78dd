"""`manage.py run_executors`: read the flags, and start an executor or a supervisor."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import django
from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import color_style, no_style
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue import __version__, registry
from jobqueue.api import declared_queues
from jobqueue.cli.backends import engine_of
from jobqueue.compat import PACKAGE
from jobqueue.engine import engine_for
from jobqueue.executor.exit_status import EXIT_REPLACE, exit_despite_threads, exit_now, flush
from jobqueue.executor.health.aggregator import HealthAggregator
from jobqueue.executor.health.server import Address, listen, parse_address, serving, url_of
from jobqueue.executor.health.status import stall_limit
from jobqueue.executor.health.systemd import SystemdNotifier
from jobqueue.executor.process import ExecutorProcess
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.standard_streams import copy_of_stderr
from jobqueue.executor.supervisor import CHILD_VARIABLE, Supervisor, SupervisorLink, start_child, watch_code
from jobqueue.executor.telemetry.console_log import ConsoleHandler, JsonFormatter, TextFormatter

PREFIX = "JOBQUEUE_"  # of the environment's variables
LONGEST_WAIT_SECONDS = 30.0  # before a child is replaced that failed again and again
RELOAD_WAIT_SECONDS = 5.0  # with --reload: the code may be half saved
LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}
SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def at_least(kind: Callable[[str], Any], low: float) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            noun = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"must be a {noun}, not {text!r}") from None
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be {low:g} or more, not {text}")
        return value

    return parse


def address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def queue(text: str) -> tuple[str, int | None]:
    """Read NAME, or NAME:LIMIT."""
    name, colon, limit = text.partition(":")
    if not name or (colon and not (limit.isascii() and limit.isdigit() and int(limit) > 0)):
        raise argparse.ArgumentTypeError(
            f"must be NAME or NAME:LIMIT with a limit of 1 or more, not {text!r}. If the name of a queue contains a "
            "colon, start executors without --queue"
        )
    return name, int(limit) if colon else None


def misspelt_variables(names: Iterable[str], flags: Collection[str]) -> str:
    """Return one line about the variables that are almost flags, "" if there are none."""
    endings = {flag.removeprefix(PREFIX): flag for flag in flags}
    unknown = {name for name in names if name.startswith(PREFIX)} - set(flags)
    found = [
        f"{name} (did you mean {endings[ending]}?)"
        for name in sorted(unknown)
        for ending in difflib.get_close_matches(name.removeprefix(PREFIX).upper(), endings, 1, 0.6)
    ]
    return f"run_executors ignores variables of the environment: {', '.join(found)}." if found else ""


def log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise argparse.ArgumentTypeError(f"must be text or json, not {text!r}")
    return text


class Append(argparse.Action):
    """Like "append", but values from the command line replace those from the environment."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        items = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [values] if items is self.default else [*items, values])


class Flags:
    """Adds flags that take their defaults from the environment."""

    def __init__(self, parser: CommandParser) -> None:
        self._parser = parser
        self.variables: set[str] = set()

    def add(self, *names: str, default: Any = None, help: str, **options: Any) -> None:  # noqa: A002 - the name in argparse
        variable = PREFIX + names[-1].removeprefix("--").replace("-", "_").upper()
        self.variables.add(variable)
        if given := os.environ.get(variable, "").strip():
            try:
                default = self._read(given, options)
            except (ValueError, KeyError, argparse.ArgumentTypeError) as error:
                self._parser.error(f"{variable}={given!r} in the environment: {error}")
        self._parser.add_argument(*names, default=default, help=f"{help} [{variable}]", **options)

    def _read(self, given: str, options: dict[str, Any]) -> Any:
        match options:
            case {"action": "store_true"}:
                if given.lower() not in SWITCH:
                    raise ValueError("must be 1 or 0")
                return SWITCH[given.lower()]
            case {"action": _, "type": read}:
                return [read(item) for item in given.replace(",", " ").split()]
            case {"type": read}:
                return read(given)
        return given


class Command(BaseCommand):
    help = (
        "Run tasks until you stop the command. On SIGTERM, SIGHUP or Ctrl-C, running tasks may end within "
        "--shutdown-timeout. A second such signal, or SIGQUIT, releases all tasks at once. Other executors start "
        "released tasks again. SIGTSTP pauses until SIGCONT. SIGUSR1 prints all threads and running tasks. Exit codes: "
        "0 done, 1 wrong configuration, 2 wrong usage, 69 no database at the start, 70 internal error, 130 after a "
        "second Ctrl-C, 131 after SIGQUIT. Each option is also an environment variable, in brackets below."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        flags = Flags(parser)
        self._variables = flags.variables
        add = flags.add
        add(
            "-q",
            "--queue",
            action=Append,
            type=queue,
            metavar="NAME[:LIMIT]",
            help="serve this queue only, with at most LIMIT of its tasks at once in each process; repeat for several "
            "(every queue)",
        )
        add("-t", "--threads", type=at_least(int, 1), default=8, help="number of worker threads (8)")
        add("--async-slots", type=at_least(int, 1), default=100, help="how many async tasks run at once (100)")
        add("-p", "--processes", type=at_least(int, 1), default=1, help="number of processes (1)")
        add("--burst", action="store_true", help="exit when no task is ready, running, or due within a second")
        add("--max-tasks", type=at_least(int, 1), help="stop each process after this number of tasks")
        add(
            "--shutdown-timeout",
            type=at_least(float, 0),
            default=25.0,
            help="seconds in which running tasks may end at a stop (25)",
        )
        add(
            "--connect-timeout",
            type=at_least(float, 0),
            default=60.0,
            help="seconds to wait for the database at the start (60)",
        )
        add(
            "--poll-interval",
            type=at_least(float, 0.01),
            help="longest sleep without a notification, in seconds (POLL_INTERVAL)",
        )
        add("--backend", default="default", help="alias in TASKS (default)")
        add("--name", help="name of the executor in logs and in the admin (host.pid)")
        add(
            "--health",
            type=address,
            metavar="HOST:PORT",
            help="answer /livez and /readyz at this address, for all processes; PORT alone: on 127.0.0.1",
        )
        add(
            "--log-format",
            type=log_format,
            default="text",
            help="text or json, if LOGGING has no handler for jobqueue (text)",
        )
        add("--reload", action="store_true", help="restart when code changes, for development")

    def check(self, *args: Any, **options: Any) -> None:
        if CHILD_VARIABLE not in os.environ:  # its supervisor has checked
            super().check(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        link = SupervisorLink.from_environment()
        with SignalPipe(lifeline=link.connection.fileno() if link else None).installed() as signals:
            self._set_up_logging(options)
            settings = self._settings(options)
            if link is not None:
                self._run_child(link, settings, options, signals)
            if line := misspelt_variables(os.environ, self._variables):
                self.stderr.write(line)
            with self._listening(options["health"]) as listener:
                if options["processes"] > 1 or options["reload"]:
                    code = self._supervise(settings, options, signals, listener)
                else:
                    code = self._run(settings, signals, listener)
        if code:
            sys.exit(code)

    @contextmanager
    def _listening(self, where: Address | None) -> Iterator[socket.socket | None]:
        """Bind the port of --health before anything else is done."""
        if where is None:
            yield None
            return
        try:
            listener = listen(where)
        except OSError as error:
            raise CommandError(f"--health {where}: {error.strerror or error}.") from error
        with listener:
            yield listener

    def _run(self, settings: ExecutorSettings, signals: SignalPipe, listener: socket.socket | None) -> int:
        if django_settings.DEBUG:
            self.stderr.write("DEBUG is on: use --reload while developing, and DEBUG=False in production.")
        systemd = SystemdNotifier.from_environment()
        threads = set(threading.enumerate())
        executor = ExecutorProcess(
            settings,
            signals,
            on_ready=self._say_ready(settings),
            report_health=systemd.notify if systemd is not None else None,
        )
        self._print_banner(settings, executor.name, 1, listener)
        with serving(listener, executor.health.status):
            code = executor.run()
        if code == EXIT_REPLACE:
            # A thread does not stop: a new program in this process ends it, and continues with the queue.
            flush()
            os.execv(sys.executable, sys.orig_argv)
        if executor.has_live_threads:
            exit_now(code)
        if getattr(self, "_called_from_command_line", False):  # else the program has more to do
            exit_despite_threads(threads, code)
        return code

    def _supervise(
        self, settings: ExecutorSettings, options: dict[str, Any], signals: SignalPipe, listener: socket.socket | None
    ) -> int:
        if django_settings.DEBUG and not options["reload"]:
            self.stderr.write("DEBUG is on: its log of queries grows; use DEBUG=False in production.")
        processes: int = options["processes"]
        self._print_banner(settings, settings.name or f"{socket.gethostname()}.{os.getpid()}", processes, listener)
        limit = stall_limit(engine_for(settings.backend).options)
        health = HealthAggregator(limit, SystemdNotifier.from_environment())
        with signals.installed(signal.SIGCHLD), serving(listener, health.status):
            return Supervisor(
                processes,
                start_child,
                signals,
                health,
                shutdown_timeout=settings.shutdown_timeout,
                longest_wait_seconds=RELOAD_WAIT_SECONDS if options["reload"] else LONGEST_WAIT_SECONDS,
                is_finite=settings.burst,
            ).run()

    def _run_child(
        self, link: SupervisorLink, settings: ExecutorSettings, options: dict[str, Any], signals: SignalPipe
    ) -> NoReturn:
        if settings.name and options["processes"] > 1:
            settings = replace(settings, name=f"{settings.name}.{link.number + 1}")
        executor = ExecutorProcess(
            settings,
            signals,
            is_supervised=True,
            on_ready=self._say_ready(settings) if link.number == 0 else lambda: None,
            report_health=link.report,
        )
        if options["reload"]:
            watch_code(executor)
        exit_now(executor.run())

    def _settings(self, options: dict[str, Any]) -> ExecutorSettings:
        backend, queues = options["backend"], options["queue"]
        known = declared_queues(engine_of(backend).alias)
        limits: dict[str, int | None] = {}
        for name, limit in queues or ():
            if limits.setdefault(name, limit) != limit:
                raise CommandError(f"Queue {name!r} is named twice, with different limits.")
            if known and name not in known:
                raise CommandError(f"Unknown queue {name!r}. QUEUES of TASKS[{backend!r}]: {', '.join(sorted(known))}.")
        return ExecutorSettings(
            backend=backend,
            queues=tuple(limits) or None,
            queue_limits={name: limit for name, limit in limits.items() if limit is not None},
            threads=options["threads"],
            async_slots=options["async_slots"],
            burst=options["burst"],
            max_tasks=options["max_tasks"],
            shutdown_timeout=options["shutdown_timeout"],
            connect_timeout=options["connect_timeout"],
            poll_interval=options["poll_interval"],
            name=options["name"],
        )

    def _print_banner(
        self, settings: ExecutorSettings, name: str, processes: int, listener: socket.socket | None
    ) -> None:
        for line in banner_lines(settings, name, processes):
            self.stdout.write(line)
        if listener is not None:
            self.stdout.write(f"health      {url_of(listener)}/livez, /readyz")
        self.stdout.flush()

    def _say_ready(self, settings: ExecutorSettings) -> Callable[[], None]:
        end = "ends when the queue is drained" if settings.burst else "Ctrl-C to stop"

        def print_ready() -> None:
            self.stdout.write(f"ready, waiting for work ({end})")
            self.stdout.flush()

        return print_ready

    def _set_up_logging(self, options: dict[str, Any]) -> None:
        """Log to stderr unless the site's LOGGING has a handler: Django's default hides INFO of other packages."""
        logger = logging.getLogger("jobqueue")
        if logger.handlers or logging.getLogger().handlers:
            return
        verbosity: int = options["verbosity"]
        has_colors = options["force_color"] or (self.stderr.isatty() and not options["no_color"])
        style = color_style(force_color=True) if has_colors else no_style()
        formatter = JsonFormatter() if options["log_format"] == "json" else TextFormatter(style)
        handler = ConsoleHandler(formatter, copy_of_stderr())
        logger.addHandler(handler)
        logger.setLevel(LEVELS[verbosity])
        logger.propagate = False
        # Django logs failures, too. Without DEBUG it mails them to ADMINS, otherwise it would print them again.
        framework = logging.getLogger(PACKAGE)
        is_mailed = framework.hasHandlers() and not django_settings.DEBUG
        framework.setLevel(logging.ERROR if is_mailed else logging.CRITICAL)
        if verbosity >= 3:
            sql = logging.getLogger("django.db.backends")
            sql.addHandler(handler)
            sql.setLevel(logging.DEBUG)
            sql.propagate = False
            connection_created.connect(log_queries, dispatch_uid="jobqueue.run_executors")


def log_queries(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    connection.force_debug_cursor = True


def banner_lines(settings: ExecutorSettings, name: str, processes: int) -> Iterator[str]:
    """Yield what a start prints: the executor, versions, database, queues and slots."""
    database, limits = connections[engine_for(settings.backend).database], settings.queue_limits
    each = " each" if processes > 1 else ""
    names = [f"{queue} (max {limits[queue]}{each})" if queue in limits else queue for queue in settings.queues or ()]
    yield (
        f"jobqueue {__version__} · executor {name} · django {django.get_version()} · python "
        f"{platform.python_version()} · {database.display_name} (database {database.alias!r})"
    )
    yield f"queues      {', '.join(names) or 'every queue':<36} {len(registry.all())} tasks registered"
    yield f"slots       {processes} × ({settings.threads} threads + {settings.async_slots} async)"
    yield f"shutdown    {settings.shutdown_timeout:g} s grace on SIGTERM, Ctrl-C twice to release tasks at once"

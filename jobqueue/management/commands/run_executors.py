"""manage.py run_executors: parse flags, call; no logic."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import django
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils import autoreload

from jobqueue import __version__, registry
from jobqueue.engine import engine_for
from jobqueue.executor.process import EXIT_REPLACE, ExecutorProcess
from jobqueue.executor.reload import run_and_hand_back
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.supervisor import Supervisor

LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}


def positive(kind: Callable[[str], Any], low: float) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be {low:g} or more, not {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


class Command(BaseCommand):
    help = "Run the tasks of a queue until told to stop (Ctrl-C, SIGTERM)."

    def add_arguments(self, parser: CommandParser) -> None:
        def add(*flags: str, default: Any = None, help: str, **options: Any) -> None:  # noqa: A002 - argparse's word
            """Add a flag whose default may come from the environment."""
            variable = "JOBQUEUE_" + flags[-1].removeprefix("--").replace("-", "_").upper()
            given = os.environ.get(variable, "")
            if options.get("action") == "store_true":
                default = given.lower() in ("1", "true", "yes", "on")
            elif options.get("action") == "append":
                default = given.replace(",", " ").split() or None
            elif given:
                default = given  # argparse runs a text default through `type`
            parser.add_argument(*flags, default=default, help=f"{help} [{variable}]", **options)

        add(
            "-q",
            "--queue",
            action="append",
            metavar="NAME",
            help="a queue to serve; repeat for more; none: every queue",
        )
        add("-t", "--threads", type=positive(int, 1), default=8, help="tasks at once in threads (8)")
        add("--async-slots", type=positive(int, 1), default=100, help="async tasks at once (100)")
        add("-p", "--processes", type=positive(int, 1), default=1, help="processes under one supervisor (1)")
        add(
            "--burst", action="store_true", help="exit when nothing is ready, running, or due within a second"
        )
        add("--max-tasks", type=positive(int, 1), help="stop after so many tasks")
        add(
            "--shutdown-timeout",
            type=positive(float, 0),
            default=25.0,
            help="seconds that running tasks get on SIGTERM (25)",
        )
        add(
            "--poll-interval",
            type=positive(float, 0.01),
            help="longest sleep without a notice, in seconds (POLL_INTERVAL)",
        )
        add("--backend", default="default", help="alias in TASKS (default)")
        add("--name", help="how logs and the admin call this executor (host.pid)")
        add("--reload", action="store_true", help="restart when code changes, for development")

    def handle(self, *args: Any, **options: Any) -> None:
        self._set_up_logging(options["verbosity"], no_color=options["no_color"])
        settings = self._settings(options)
        processes: int = options["processes"]
        if options["reload"] and processes > 1:
            raise CommandError("--reload works with one process; leave out --processes.")
        if options["reload"]:
            autoreload.run_with_reloader(
                lambda: run_and_hand_back(lambda: self._executor(settings, processes))
            )
            return
        if django_settings.DEBUG:
            self.stderr.write("DEBUG is on: use --reload while developing, and DEBUG=False in production.")
        if processes == 1:
            executor = self._executor(settings, processes)
            self._leave(executor.run(), executor)
        for connection in connections.all(initialized_only=True):
            connection.close()  # children must not share a socket
        supervisor = Supervisor(
            processes,
            lambda number: self._run_child(settings, processes, number),
            settings.shutdown_timeout,
            is_finite=settings.burst,
        )
        sys.exit(supervisor.run())

    def _settings(self, options: dict[str, Any]) -> ExecutorSettings:
        try:
            engine_for(options["backend"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        queues = options["queue"]
        known = set(django_settings.TASKS[options["backend"]].get("QUEUES", ["default"]))
        for name in queues or ():
            if known and name not in known:
                raise CommandError(
                    f"Queue {name!r} is not in QUEUES of TASKS[{options['backend']!r}]: {', '.join(sorted(known))}."
                )
        return ExecutorSettings(
            backend=options["backend"],
            queues=tuple(dict.fromkeys(queues)) if queues else None,
            threads=options["threads"],
            async_slots=options["async_slots"],
            burst=options["burst"],
            max_tasks=options["max_tasks"],
            shutdown_timeout=options["shutdown_timeout"],
            poll_interval=options["poll_interval"],
            name=options["name"],
        )

    def _executor(self, settings: ExecutorSettings, processes: int) -> ExecutorProcess:
        executor = ExecutorProcess(settings)
        self._print_banner(executor, settings, processes)
        return executor

    def _run_child(self, settings: ExecutorSettings, processes: int, number: int) -> int:
        executor = ExecutorProcess(settings)
        if number == 0:
            self._print_banner(executor, settings, processes)
        return executor.run()

    def _leave(self, code: int, executor: ExecutorProcess) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        if code == EXIT_REPLACE:
            # A thread does not stop: a new program in this process ends it, and goes on with the queue.
            os.execv(sys.executable, sys.orig_argv)
        if executor.has_live_threads:
            os._exit(code)
        sys.exit(code)

    def _print_banner(self, executor: ExecutorProcess, settings: ExecutorSettings, processes: int) -> None:
        connection = connections[executor.engine.database]
        python = ".".join(map(str, sys.version_info[:3]))
        queues = ", ".join(settings.queues) if settings.queues else "every queue"
        each = f"{settings.threads} threads + {settings.async_slots} async"
        for line in (
            f"jobqueue {__version__} · executor {executor.name} · django {django.get_version()} · python {python} · "
            f"{connection.vendor} (database {executor.engine.database!r})",
            f"queues      {queues:<36} {len(registry.all())} tasks registered",
            f"slots       {processes} × ({each})",
            f"shutdown    {settings.shutdown_timeout:g} s grace on SIGTERM, Ctrl-C twice to hand back at once",
            "ready, waiting for work"
            + ("; ends when the queue is drained" if settings.burst else " (Ctrl-C to stop)"),
        ):
            self.stdout.write(line)
        self.stdout.flush()

    def _set_up_logging(self, verbosity: int, *, no_color: bool) -> None:
        """Django's default LOGGING leaves INFO of other packages invisible: speak up unless the site decided."""
        logger = logging.getLogger("jobqueue")
        if logger.handlers or logging.getLogger().handlers:
            return
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(LEVELS[verbosity])
        logger.propagate = False
        if verbosity >= 3:
            logging.getLogger("django.db.backends").setLevel(logging.DEBUG)

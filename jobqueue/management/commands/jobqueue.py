"""manage.py jobqueue: verbs and flags. Each verb is a function of `jobqueue.cli`; the flags are its parameters."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from django.db import DatabaseError

from jobqueue.cli import argument_types as types
from jobqueue.cli import bulk, doctor, enqueue, executors, prune, queues, show, status, tail
from jobqueue.cli.console import Console, UsageError, first_line
from jobqueue.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, InvalidTask
from jobqueue.exceptions import JobQueueError
from jobqueue.inspect.bulk import CANCEL, REQUEUE
from jobqueue.records import FINAL, Status
from jobqueue.records import Command as ExecutorCommand

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141  # as a shell reports SIGPIPE


class Parser(CommandParser):
    """Reports wrong usage in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        text = f"{self.prog}: {message}"
        if not self.called_from_command_line:
            raise CommandError(text, returncode=EXIT_USAGE)
        self.exit(EXIT_USAGE, f"{text}\nSee: {self.prog} --help\n")


class Command(BaseCommand):
    help = (
        "Show the queue and change it. Results go to stdout, messages to stderr. "
        "Exit codes: 0 success, 1 failure or an exceeded bound of status, 2 wrong usage, 130 Ctrl-C."
    )
    requires_system_checks = ()  # `doctor` runs ours; a timer that runs each minute needs no warnings each minute
    _verbs: Any

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = Parser  # Django has no setting for the class
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        self._verbs = parser.add_subparsers(
            dest="verb", required=True, metavar="VERB", title="verbs", parser_class=Parser
        )
        self._add_reading()
        self._add_changing_tasks()
        self._add_queues_and_executors()
        self._add_sending()

    def _add(self, name: str, run: Callable[..., None], help: str, **defaults: Any) -> CommandParser:  # noqa: A002
        verb: CommandParser = self._verbs.add_parser(name, help=help, description=help)
        verb.add_argument("--backend", metavar="ALIAS", help="alias in TASKS")
        verb.add_argument("--json", action="store_true", help="write JSON")
        verb.set_defaults(run=run, parser=verb, **defaults)
        _add_django_options(verb)
        return verb

    def _add_reading(self) -> None:
        verb = self._add("status", status.status, "Show queues, executors, and what ended in the last minute.")
        verb.add_argument(
            "--max-latency", type=types.duration, metavar="TIME", help="exit with 1 if a queue's latency is larger: 5m"
        )
        verb.add_argument(
            "--min-executors", type=types.within(1, 1000), metavar="N", help="exit with 1 if fewer executors are alive"
        )
        verb = self._add("show", show.show, "Show one task in full.")
        verb.add_argument("id", type=types.task_id, help="task id")
        verb = self._add("tail", tail.tail, "Show the last tasks that ended.")
        verb.add_argument("-f", "--follow", action="store_true", help="show further tasks as they end, until Ctrl-C")
        verb.add_argument("-n", "--lines", type=types.within(0, 500), default=10, help="number of tasks at first (10)")
        verb.add_argument(
            "--interval", type=types.duration, default="1s", metavar="TIME", help="time between two queries (1s)"
        )
        _add_filters(verb, FINAL)
        self._add("doctor", doctor.doctor, "Check the installation, and say what to do.")

    def _add_changing_tasks(self) -> None:
        verb = self._add(
            "requeue", bulk.perform, "Requeue failed or cancelled tasks with a fresh set of attempts.", action=REQUEUE
        )
        _add_bulk(verb, REQUEUE.statuses)
        verb.add_argument(
            "--failed", action="append_const", dest="status", const=Status.FAILED, help="the same as --status FAILED"
        )
        verb = self._add(
            "cancel", bulk.perform, "Cancel unfinished tasks; running ones are asked to stop.", action=CANCEL
        )
        _add_bulk(verb, CANCEL.statuses)
        verb.add_argument("--descendants", action="store_true", help="also cancel children, and their children")
        verb = self._add("prune", prune.prune, "Delete tasks that ended long ago.")
        verb.add_argument("--older-than", type=types.duration, required=True, metavar="TIME", help="such as 14d or 12h")
        _add_status(verb, FINAL)
        _add_confirmation(verb, max_batch=100_000, batch=5000)

    def _add_queues_and_executors(self) -> None:
        verb = self._add("pause", queues.pause, "Pause queues: executors claim no more of their tasks.")
        verb.add_argument("queues", nargs="+", type=types.text_up_to(128), metavar="QUEUE")
        verb.add_argument("--reason", default="", type=types.text_up_to(255), help="why, for others to read")
        verb.add_argument("--by", type=types.text_up_to(150), help="who (default: the user of the system)")
        end = verb.add_mutually_exclusive_group()
        end.add_argument("--until", type=types.moment, metavar="WHEN", help="resume then: 2030-01-31T09:00")
        end.add_argument("--for", type=types.duration, dest="until", metavar="TIME", help="resume after: 30m, 2h")
        verb = self._add("resume", queues.resume, "Resume paused queues.")
        verb.add_argument("queues", nargs="+", type=types.text_up_to(128), metavar="QUEUE")
        verb = self._add("limit", queues.limit, "Limit how many tasks of a queue run at once across all executors.")
        verb.add_argument("queue", type=types.text_up_to(128), metavar="QUEUE")
        verb.add_argument("max_running", type=types.limit, metavar="MAX", help="a number, or none")

        verb = self._add("executors", executors.executors, "List executors, or send them a command.")
        verb.add_argument(
            "command", nargs="?", type=types.executor_command, metavar="|".join(one.lower() for one in ExecutorCommand),
            help="claim no tasks; claim tasks again; finish running tasks and exit. Without a command: list executors",
        )  # fmt: skip
        verb.add_argument("names", nargs="*", metavar="NAME", help="name or id of an executor")
        verb.add_argument("--all", action="store_true", help="all responding executors, on every host")
        verb.add_argument(
            "--wait", type=types.duration, default="10s", metavar="TIME", help="how long to wait for answers (10s)"
        )

    def _add_sending(self) -> None:
        verb = self._add("submit", enqueue.submit, "Enqueue a task, and print its id.")
        verb.add_argument("task", help="full name of a task, or its last component")
        verb.add_argument(
            "--args", dest="task_args", type=types.json_of(list, '[1, "a"]'), default=[], metavar="JSON", help="a list"
        )
        verb.add_argument(
            "--kwargs", dest="task_kwargs", type=types.json_of(dict, '{"a": 1}'), default={}, metavar="JSON",
            help="an object",
        )  # fmt: skip
        verb.add_argument("--queue", dest="queue_name", metavar="NAME", help="queue (default: as declared)")
        priorities = types.within(TASK_MIN_PRIORITY, TASK_MAX_PRIORITY)
        verb.add_argument("--priority", type=priorities, help=f"{TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}")
        verb.add_argument("--run-after", type=types.moment, metavar="WHEN", help="30m, or 2030-01-31T09:00")
        verb.add_argument("--max-attempts", type=types.within(1, 1_000_000), help="attempts (default: as declared)")
        verb.add_argument(
            "--key", type=types.text_up_to(255), help="if an unfinished task has this key, print its id instead"
        )
        verb = self._add("send", enqueue.send, "Send a message to an actor.")
        verb.add_argument("to", help="id or key of an unfinished actor")
        verb.add_argument("body", type=types.as_json, nargs="?", metavar="JSON", help="the message (default: null)")
        verb.add_argument("--dedupe-key", help="a second message with this text is not sent")

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(self.stdout, self.stderr, options["json"])
        run: Callable[..., None] = options["run"]
        try:
            run(console, **{name: options[name] for name in signature(run).parameters if name in options})
            self.stdout.flush()
        except UsageError as error:
            options["parser"].error(str(error))
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
            sys.exit(EXIT_PIPE)
        except (JobQueueError, InvalidTask, ImproperlyConfigured) as error:
            raise CommandError(" ".join(str(error).split())) from error
        except DatabaseError as error:
            raise CommandError(f"Database error: {first_line(error)} (run: manage.py jobqueue doctor)") from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=EXIT_INTERRUPTED) from None


def _add_django_options(verb: CommandParser) -> None:
    """Accept Django's options after the verb, too. Unless given there, those before the verb are kept."""
    group = verb.add_argument_group("Django's options")
    group.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS)
    for name in ("--settings", "--pythonpath"):
        group.add_argument(name, default=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        group.add_argument(name, action="store_true", default=SUPPRESS)


def _add_status(verb: CommandParser, statuses: Sequence[Status]) -> None:
    verb.add_argument(
        "--status", action="append", type=types.status, choices=statuses, default=[], metavar="STATUS",
        help=f"{', '.join(statuses)}; repeat for several",
    )  # fmt: skip


def _add_filters(verb: CommandParser, statuses: Sequence[Status]) -> None:
    _add_status(verb, statuses)
    verb.add_argument("--task", action="append", default=[], metavar="NAME", help="tasks with this name")
    verb.add_argument("--queue", action="append", default=[], metavar="NAME", help="tasks of this queue")


def _add_bulk(verb: CommandParser, statuses: Sequence[Status]) -> None:
    verb.add_argument("ids", nargs="*", type=types.task_id, metavar="ID", help="task id")
    _add_filters(verb, statuses)
    verb.add_argument("--limit", type=types.within(1, 1_000_000_000), help="change at most so many tasks")
    _add_confirmation(verb, max_batch=10_000, batch=1000)


def _add_confirmation(verb: CommandParser, *, max_batch: int, batch: int) -> None:
    verb.add_argument("--dry-run", action="store_true", help="only print the number of tasks")
    verb.add_argument("--yes", action="store_true", help="do not ask for a confirmation")
    verb.add_argument(
        "--batch", type=types.within(1, max_batch), default=batch, help=f"tasks per transaction ({batch:,})"
    )

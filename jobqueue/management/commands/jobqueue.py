"""manage.py jobqueue: parse flags, call; no logic."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from django.db import DatabaseError

from jobqueue.cli import argument_types, deeds, doctor, enqueue, executors, prune, queues, show, status, tail
from jobqueue.cli.conditions import EXAMPLE, condition
from jobqueue.cli.console import Console, first_line
from jobqueue.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, InvalidTask
from jobqueue.exceptions import JobQueueError
from jobqueue.inspect.task_filter import Choice
from jobqueue.records import FINAL, Status
from jobqueue.records import Command as Asked

EXIT_PIPE = 141  # as a shell counts SIGPIPE
Run = Callable[[Console, dict[str, Any]], None]


class Parser(CommandParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        if not self.called_from_command_line:
            super().error(message)
        self.exit(2, f"{self.prog}: {message}\n")


class Command(BaseCommand):
    help = (
        "Look at the queue and change it. Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 refused, failed, "
        "or what --fail-if asked for, 2 wrong usage, 130 stopped by Ctrl-C."
    )
    requires_system_checks = ()  # `doctor` makes ours; a timer that asks each minute wants no warnings each minute
    _parsers: Any

    def add_arguments(self, parser: CommandParser) -> None:
        self._parsers = parser.add_subparsers(
            dest="what", required=True, metavar="WHAT", title="what to do", parser_class=Parser
        )
        self._add_looking()
        self._add_deeds()
        self._add_queues()
        self._add_new()
        self._add_purge()

    def _add(self, name: str, run: Run, help: str) -> CommandParser:  # noqa: A002 - argparse's word
        parser: CommandParser = self._parsers.add_parser(name, help=help, description=help)
        parser.add_argument("--backend", metavar="ALIAS", help="alias in TASKS")
        parser.add_argument("--json", action="store_true", help="write JSON")
        parser.set_defaults(run=run)
        return parser

    def _add_looking(self) -> None:
        one = self._add("status", _status, "How many tasks wait, how long, and who runs them.")
        one.add_argument(
            "--fail-if", action="append", type=condition, default=[], metavar="CONDITION",
            help=f"exit with 1 where this holds; repeat for more. Such as {EXAMPLE}",
        )  # fmt: skip
        one = self._add("show", _show, "All there is to know of one task.")
        one.add_argument("id", type=argument_types.task_id, help="id of a task")
        one = self._add("tail", _tail, "The last tasks that ended.")
        one.add_argument("-f", "--follow", action="store_true", help="go on with each that ends, until Ctrl-C")
        one.add_argument(
            "-n", "--lines", type=argument_types.within(0, 500), default=10, help="how many to begin with (10)"
        )
        one.add_argument("--interval", type=argument_types.age, default=1.0, help="time between two looks (1s)")
        _add_choice(one, FINAL)
        self._add("doctor", _doctor, "Check what needs the database, and say what to do.")

    def _add_deeds(self) -> None:
        for deed, text in (
            (deeds.REQUEUE, "Put FAILED or CANCELLED tasks back in their queues, with all their attempts."),
            (deeds.CANCEL, "Cancel tasks that have not ended; running ones are told to stop."),
        ):
            one = self._add(deed.name, _deed(deed), text)
            one.add_argument("ids", nargs="*", type=argument_types.task_id, metavar="ID", help="id of a task")
            _add_choice(one, deed.statuses)
            if deed is deeds.REQUEUE:
                one.add_argument(
                    "--failed", action="append_const", dest="status", const="FAILED", help="the same as --status FAILED"
                )
            else:
                one.add_argument("--tree", action="store_true", help="their children too, and theirs")
            one.add_argument("--limit", type=argument_types.within(1, 1_000_000_000), help="do it to so many at most")
            _add_care(one, most=10_000, default=1000)

    def _add_queues(self) -> None:
        one = self._add("pause", _pause, "Keep executors from claiming tasks of a queue; what runs goes on.")
        one.add_argument("queues", nargs="+", type=_text(128), metavar="QUEUE")
        one.add_argument("--reason", default="", type=_text(255), help="why, for others to read")
        one.add_argument("--by", type=_text(150), help="who (the user of the system)")
        end = one.add_mutually_exclusive_group()
        end.add_argument(
            "--until", type=argument_types.later, metavar="WHEN", help="resumes then by itself: 2030-01-31T09:00"
        )
        end.add_argument(
            "--for", type=argument_types.length, dest="until", metavar="TIME", help="resumes after it: 30m, 2h"
        )
        one = self._add("resume", _resume, "Let executors claim tasks of a paused queue again.")
        one.add_argument("queues", nargs="+", type=_text(128), metavar="QUEUE")
        one = self._add("limit", _limit, "Let no more tasks of a queue run at once, in all executors together.")
        one.add_argument("queue", type=_text(128), metavar="QUEUE")
        one.add_argument("most", type=argument_types.most, metavar="MOST", help="a number, or none")

        one = self._add("executors", _executors, "Who runs the queue; or tell them to be quiet, to go on, or to stop.")
        one.add_argument(
            "command", nargs="?", type=str.lower, choices=[one.lower() for one in Asked], metavar="quiet|resume|stop",
            help="claim nothing more; claim again; finish what runs, and end. Nothing: list them",
        )  # fmt: skip
        one.add_argument("names", nargs="*", metavar="NAME", help="name or id of an executor")
        one.add_argument("--all", action="store_true", help="all that are alive, on every host")
        one.add_argument("--wait", type=argument_types.age, default=10.0, metavar="TIME", help="for their answer (10s)")

    def _add_new(self) -> None:
        one = self._add("submit", _submit, "Enqueue a task, and print its id.")
        one.add_argument("task", help="its name, or the last part of it")
        one.add_argument(
            "--args",
            dest="task_args",
            type=argument_types.json_of(list, '[1, "a"]'),
            default=[],
            metavar="JSON",
            help="a list",
        )
        one.add_argument(
            "--kwargs",
            dest="task_kwargs",
            type=argument_types.json_of(dict, '{"a": 1}'),
            default={},
            metavar="JSON",
            help="an object",
        )
        one.add_argument("--queue", metavar="NAME", help="queue (as declared)")
        one.add_argument(
            "--priority", type=argument_types.within(TASK_MIN_PRIORITY, TASK_MAX_PRIORITY), help="-100 to 100"
        )
        one.add_argument("--run-after", type=argument_types.later, metavar="WHEN", help="30m, or 2030-01-31T09:00")
        one.add_argument("--max-attempts", type=argument_types.within(1, 1_000_000), help="tries (as declared)")
        one.add_argument("--key", type=_text(255), help="at most one live task has it; gives that task's id, if any")
        one = self._add("send", _send, "Send a message to an actor.")
        one.add_argument("to", help="id or live key of the actor")
        one.add_argument(
            "body", type=argument_types.as_json, nargs="?", default=None, metavar="JSON", help="the message (null)"
        )
        one.add_argument("--dedupe-key", help="a second message with this text does nothing")

    def _add_purge(self) -> None:
        one = self._add("purge", _purge, "Delete tasks that ended long ago.")
        one.add_argument("--older-than", type=argument_types.age, required=True, metavar="AGE", help="such as 14d, 12h")
        _add_status(one, FINAL)
        _add_care(one, most=100_000, default=5000)

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(self.stdout, self.stderr, options["json"])
        run: Run = options["run"]
        try:
            run(console, options)
            self.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
            sys.exit(EXIT_PIPE)
        except (JobQueueError, InvalidTask, ImproperlyConfigured) as error:
            raise CommandError(" ".join(str(error).split())) from error
        except DatabaseError as error:
            raise CommandError(f"Database: {first_line(error)} (ask manage.py jobqueue doctor)") from error
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None


def _text(most: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > most or "\0" in text:
            raise ValueError
        return text

    read.__name__ = f"text of at most {most} characters"
    return read


def _add_status(parser: CommandParser, statuses: tuple[Status, ...]) -> None:
    parser.add_argument(
        "--status", action="append", type=str.upper, choices=[str(one) for one in statuses], default=None,
        help="those of this status; repeat for more",
    )  # fmt: skip


def _add_choice(parser: CommandParser, statuses: tuple[Status, ...]) -> None:
    _add_status(parser, statuses)
    parser.add_argument("--task", action="append", default=[], metavar="NAME", help="those of this task")
    parser.add_argument("--queue", action="append", default=[], metavar="NAME", help="those of this queue")


def _add_care(parser: CommandParser, *, most: int, default: int) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say how many")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--batch", type=argument_types.within(1, most), default=default, help=f"per transaction ({default:,})"
    )


def _statuses(options: dict[str, Any]) -> tuple[Status, ...]:
    return tuple(dict.fromkeys(Status(name) for name in options["status"] or ()))


def _choice(options: dict[str, Any]) -> Choice:
    return Choice(statuses=_statuses(options), queues=tuple(options["queue"]), tasks=tuple(options["task"]))


def _status(console: Console, options: dict[str, Any]) -> None:
    status.status(console, options["backend"], options["fail_if"])


def _show(console: Console, options: dict[str, Any]) -> None:
    show.show(console, options["id"], options["backend"])


def _tail(console: Console, options: dict[str, Any]) -> None:
    tail.tail(
        console,
        options["backend"],
        _choice(options),
        lines=options["lines"],
        follow=options["follow"],
        interval_seconds=options["interval"],
    )


def _doctor(console: Console, options: dict[str, Any]) -> None:
    doctor.doctor(console, options["backend"])


def _deed(deed: deeds.Deed) -> Run:
    def run(console: Console, options: dict[str, Any]) -> None:
        request = deeds.Request(
            deed=deed,
            ids=options["ids"],
            choice=_choice(options),
            backend=options["backend"],
            limit=options["limit"],
            batch=options["batch"],
            tree=options.get("tree", False),
            is_dry=options["dry_run"],
            is_sure=options["yes"],
        )
        deeds.perform(console, request)

    return run


def _pause(console: Console, options: dict[str, Any]) -> None:
    queues.pause(
        console,
        options["queues"],
        options["backend"],
        by=options["by"],
        reason=options["reason"],
        until=options["until"],
    )


def _resume(console: Console, options: dict[str, Any]) -> None:
    queues.resume(console, options["queues"], options["backend"])


def _limit(console: Console, options: dict[str, Any]) -> None:
    queues.limit(console, options["queue"], options["most"], options["backend"])


def _executors(console: Console, options: dict[str, Any]) -> None:
    if options["command"] is None:
        executors.show(console, options["backend"])
        return
    executors.tell(
        console,
        Asked(options["command"].upper()),
        options["names"],
        options["backend"],
        is_for_all=options["all"],
        wait_seconds=options["wait"],
    )


def _submit(console: Console, options: dict[str, Any]) -> None:
    enqueue.submit(
        console,
        options["task"],
        options["task_args"],
        options["task_kwargs"],
        queue_name=options["queue"],
        priority=options["priority"],
        run_after=options["run_after"],
        max_attempts=options["max_attempts"],
        key=options["key"],
        backend=options["backend"],
    )


def _send(console: Console, options: dict[str, Any]) -> None:
    enqueue.send(console, options["to"], options["body"], dedupe_key=options["dedupe_key"], backend=options["backend"])


def _purge(console: Console, options: dict[str, Any]) -> None:
    prune.prune(
        console,
        options["backend"],
        _statuses(options),
        kept_seconds=options["older_than"],
        batch=options["batch"],
        is_dry=options["dry_run"],
        is_sure=options["yes"],
    )

"""manage.py jobqueue: verbs and flags. Each verb is a function of `jobqueue.cli` that reads its flags."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from django.db import DatabaseError

from jobqueue.api.limits import KINDS
from jobqueue.conf.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, InvalidTask
from jobqueue.exceptions import JobQueueError
from jobqueue.management.cli import (
    arguments,
    bulk,
    doctor,
    enqueue,
    executors,
    import_celery_beat,
    limits,
    listing,
    queues,
    schedules,
    show,
    status,
    tail,
)
from jobqueue.management.cli.console import EXIT_INTERRUPTED, Console, first_line
from jobqueue.operations.bulk.actions import CANCEL, REQUEUE
from jobqueue.operations.bulk.actor import MAX_RATE
from jobqueue.values.records import FINAL, Status
from jobqueue.values.records import Command as ExecutorCommand

EXIT_PIPE = 141  # as a shell reports SIGPIPE


class Command(BaseCommand):
    help = (
        "Show the queue and change it. 'jobqueue VERB --help' lists the options of a verb. Results go to stdout, "
        "messages to stderr. Exit codes: 0 success, 1 failure or an exceeded limit of status, 2 wrong usage, "
        "130 Ctrl-C."
    )
    requires_system_checks = ()  # `doctor` runs ours; a timer that runs each minute needs no warnings each minute

    def add_arguments(self, parser: CommandParser) -> None:
        arguments.report_usage_in_one_line(parser)
        verbs = parser.add_subparsers(
            dest="verb", required=True, metavar="VERB", title="verbs", parser_class=arguments.Parser
        )

        def add(name: str, run: Callable[[Console, Any], None], text: str, **defaults: Any) -> CommandParser:
            verb: CommandParser = verbs.add_parser(name, help=text, description=text)
            verb.add_argument("--backend", metavar="ALIAS", help="alias in TASKS")
            verb.add_argument("--json", action="store_true", help="write JSON")
            verb.set_defaults(run=run, parser=verb, **defaults)
            _add_django_options(verb)
            return verb

        add_reading_verbs(add)
        add_changing_verbs(add)
        add_queue_and_executor_verbs(add)
        add_sending_verbs(add)
        add_schedule_verbs(add)
        add_limit_verbs(add)
        add_import_verbs(add)

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        flags = Namespace(**options)
        try:
            flags.run(Console(self.stdout, self.stderr, flags.json), flags)
            self.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
            sys.exit(EXIT_PIPE)
        except (JobQueueError, InvalidTask, ImproperlyConfigured) as error:
            raise CommandError(" ".join(str(error).split())) from error
        except DatabaseError as error:
            raise CommandError(f"Database error: {first_line(error)} (run: manage.py jobqueue doctor)") from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=EXIT_INTERRUPTED) from None


Add = Callable[..., CommandParser]
count = partial(arguments.within, 1)


def add_reading_verbs(add: Add) -> None:
    verb = add("status", status.status, "Show queues, executors, and how many tasks ended in the last minute.")
    latency = "exit with 1 if a queue has a larger latency, such as 5m"
    verb.add_argument("--max-latency", type=arguments.duration, metavar="TIME", help=latency)
    verb.add_argument(
        "--min-executors", type=count(1000), metavar="N", help="exit with 1 if fewer executors are active"
    )
    verb = add("show", show.show, "Show one task in full.")
    verb.add_argument("id", type=UUID, help="task id")
    add_list(add)
    verb = add("tail", tail.tail, "Show the last tasks that ended.")
    verb.add_argument("-f", "--follow", action="store_true", help="show further tasks as they end, until Ctrl-C")
    verb.add_argument("-n", "--lines", type=arguments.within(0, 500), default=10, help="number of tasks at first (10)")
    interval = "time between two queries (1s)"
    verb.add_argument("--interval", type=arguments.duration, default="1s", metavar="TIME", help=interval)
    _add_filters(verb, FINAL)
    add("doctor", doctor.doctor, "Check the installation and give advice.")


def add_list(add: Add) -> None:
    verb = add(
        "list", listing.list_tasks, "List tasks, the newest first, with the filters and the search of the admin."
    )
    names = [str(status) for status in Status]
    verb.add_argument("--status", type=str.upper, choices=names, metavar="STATUS", help=", ".join(names))
    verb.add_argument("--task", metavar="NAME", help="tasks with this name")
    verb.add_argument("--queue", metavar="NAME", help="tasks of this queue")
    verb.add_argument("--tag", metavar="TAG", help="tasks with this tag")
    verb.add_argument("--executor", metavar="NAME", help="tasks that this executor runs or has run; a name or an id")
    verb.add_argument("--parent", type=UUID, metavar="ID", help="children of this task")
    verb.add_argument("--schedule", metavar="NAME", help="tasks that this schedule has enqueued")
    when = "such as 2h for two hours ago, or 2030-01-31T09:00"
    for name, what in (("enqueued", "were enqueued"), ("ended", "ended")):
        verb.add_argument(
            f"--{name}-since", type=arguments.moment, metavar="WHEN", help=f"tasks that {what} later: {when}"
        )
        verb.add_argument(f"--{name}-until", type=arguments.moment, metavar="WHEN", help=f"tasks that {what} earlier")
    text = verb.add_mutually_exclusive_group()
    text.add_argument("--error", metavar="TEXT", help="failed tasks whose error contains this text")
    search = "as in the search box: the beginning of an id, key:, task:, args.NAME:VALUE, tag: or error:"
    text.add_argument("--search", metavar="TEXT", help=search)
    verb.add_argument("-n", "--lines", type=count(10_000), default=25, help="number of tasks (25)")
    verb.add_argument("--reverse", action="store_true", help="the oldest first; of SCHEDULED, the last that will start")


def add_changing_verbs(add: Add) -> None:
    text = "Requeue failed or cancelled tasks with a fresh set of attempts."
    verb = add("requeue", bulk.perform, text, action=REQUEUE)
    _add_bulk(verb, REQUEUE.statuses)
    failed = "the same as --status FAILED"
    verb.add_argument("--failed", action="append_const", dest="status", const=Status.FAILED, help=failed)
    error = "failed tasks whose error class and message contain this text, or with this cause"
    verb.add_argument("--error", metavar="TEXT", help=error)
    verb.add_argument(
        "--since", type=arguments.duration, metavar="TIME", help="tasks that ended in this time, such as 2h"
    )
    verb.add_argument("--rate", type=count(MAX_RATE), metavar="N", help="at most N tasks a second")
    verb = add("cancel", bulk.perform, "Cancel unfinished tasks; running ones are asked to stop.", action=CANCEL)
    _add_bulk(verb, CANCEL.statuses)
    verb.add_argument("--descendants", action="store_true", help="also cancel children, and their children")
    verb = add("prune", bulk.prune, "Delete tasks that ended long ago.")
    age = "delete tasks that ended longer ago, such as 14d or 12h"
    verb.add_argument("--older-than", type=arguments.duration, required=True, metavar="TIME", help=age)
    _add_status(verb, FINAL)
    _add_confirmation(verb, max_batch=100_000, batch=5000)


def add_queue_and_executor_verbs(add: Add) -> None:
    verb = add("pause", queues.pause, "Pause queues: executors claim no more of their tasks.")
    verb.add_argument("queues", nargs="+", metavar="QUEUE", help="name of a queue")
    _add_pause(verb)
    verb = add("resume", queues.resume, "Resume paused queues.")
    verb.add_argument("queues", nargs="+", metavar="QUEUE", help="name of a queue")
    verb = add("limit", queues.limit, "Limit how many tasks of a queue run at once across all executors.")
    verb.add_argument("queue", metavar="QUEUE", help="name of a queue")
    verb.add_argument("max_running", type=arguments.limit, metavar="MAX", help="a number, or none for no limit")

    verb = add("executors", executors.executors, "List executors, or send them a command.")
    commands = [one.lower() for one in ExecutorCommand]
    text = "claim no tasks; claim tasks again; finish running tasks and exit. Without a command: list executors"
    verb.add_argument("command", nargs="?", type=str.lower, choices=commands, metavar="|".join(commands), help=text)
    verb.add_argument("names", nargs="*", metavar="NAME", help="name or id of an executor")
    verb.add_argument("--all", action="store_true", help="all responding executors, on every host")
    wait = "how long to wait for answers (10s)"
    verb.add_argument("--wait", type=arguments.duration, default="10s", metavar="TIME", help=wait)


def add_sending_verbs(add: Add) -> None:
    verb = add("submit", enqueue.submit, "Enqueue a task, and print its id.")
    verb.add_argument("task", help="full name of a task, or its last component")
    for name, kind, text in (("args", list, 'such as [1, "a"]'), ("kwargs", dict, 'such as {"a": 1}')):
        read = partial(arguments.json_value, kind=kind)
        verb.add_argument(f"--{name}", dest=f"task_{name}", type=read, default=kind(), metavar="JSON", help=text)
    verb.add_argument("--queue", dest="queue_name", metavar="NAME", help="queue (default: as declared)")
    verb.add_argument("--priority", type=int, help=f"{TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}")
    verb.add_argument(
        "--run-after", type=arguments.moment, metavar="WHEN", help="start later: 30m, or 2030-01-31T09:00"
    )
    verb.add_argument("--max-attempts", type=int, help="attempts (default: as declared)")
    verb.add_argument("--key", help="if a live task has this key, print its id instead")
    verb = add("send", enqueue.send, "Send a message to an actor.")
    verb.add_argument("to", help="id or key of a live actor")
    verb.add_argument("body", type=arguments.json_value, nargs="?", metavar="JSON", help="the message (default: null)")
    verb.add_argument("--dedupe-key", help="the actor gets only one message with this text")


def add_import_verbs(add: Add) -> None:
    text = "Create schedules from the tables of django-celery-beat and from CELERY_BEAT_SCHEDULE."
    verb = add("import_celery_beat", import_celery_beat.import_celery_beat, text)
    verb.add_argument("--dry-run", action="store_true", help="only show what the command would do")
    verb.add_argument("--update", action="store_true", help="also replace schedules that exist, but not their pauses")
    name = "the task that runs in place of a task of Celery, such as send-report=shop.tasks.send_report; repeatable"
    verb.add_argument("--map", type=arguments.pair, action="append", default=[], metavar="OLD=NEW", help=name)
    file = "a JSON file with one object, from names of Celery to names of tasks"
    verb.add_argument("--map-file", type=arguments.names_in_file, default={}, metavar="FILE", help=file)


def add_schedule_verbs(add: Add) -> None:
    text = "List schedules. With an action: show one, pause, resume, run or backfill it."
    verb = add("schedules", schedules.list_schedules, text)
    verb.add_argument("--all", action="store_true", help="also retired ones, which code no longer declares")
    verb.add_argument("--name", default="", dest="part", help="a part of the name")
    verb.add_argument(
        "-n", "--lines", type=arguments.within(1, 100_000), default=200, help="number of schedules of a backend (200)"
    )
    add_schedule_action = _actions(verb)

    def add_action(name: str, run: Callable[[Console, Any], None], text: str, *, many: bool = False) -> CommandParser:
        action = add_schedule_action(name, run, text)
        what = "name of a schedule"
        if many:
            action.add_argument("names", nargs="+", metavar="NAME", help=what)
        else:
            action.add_argument("name", metavar="NAME", help=what)
        return action

    add_action("show", schedules.show, "Show a schedule, its next ticks, and its last ones with their tasks.")
    text = "Show the next ticks, with notes where daylight saving moves one."
    action = add_action("next", schedules.next_, text)
    action.add_argument("-n", "--lines", type=arguments.within(1, 1000), default=10, help="number of ticks (10)")
    _add_pause(add_action("pause", schedules.pause, "Pause schedules: their ticks are skipped.", many=True))
    add_action("resume", schedules.resume, "Resume paused schedules.", many=True)
    add_action("run", schedules.run, "Enqueue a task of a schedule now, and print its id.")
    text = "Enqueue tasks for the ticks of a past range that have none."
    action = add_action("backfill", schedules.backfill, text)
    when = "such as 2030-01-31T09:00, or 7d for seven days ago"
    start = f"first moment of the range, {when}"
    action.add_argument("--from", type=arguments.moment, dest="start", required=True, metavar="WHEN", help=start)
    end = f"last moment of the range, {when} (default: now)"
    action.add_argument("--to", type=arguments.moment, dest="end", default="0s", metavar="WHEN", help=end)
    _add_questions(action)


def add_limit_verbs(add: Add) -> None:
    kinds = [str(kind) for kind in KINDS]

    def add_kind(parser: CommandParser, **options: Any) -> None:
        text = "only limits of this kind" if not options else "needed if a concurrency limit and a rate have the key"
        parser.add_argument("--kind", choices=kinds, metavar="|".join(kinds), help=text, **options)

    text = "List the keys of limits by key, most BLOCKED tasks first. With an action: set or reset a number."
    verb = add("limits", limits.list_limits, text)
    name = "a part of a limit's name, or the start of a key, with or without NAME: before it"
    verb.add_argument("--name", default="", help=name)
    add_kind(verb)
    verb.add_argument("--blocked", action="store_true", help="only keys with BLOCKED tasks")
    verb.add_argument("-n", "--lines", type=count(1000), default=25, help="number of keys of each backend (25)")
    add_action = _actions(verb)

    key = "NAME of a limit for all of its keys, or NAME:KEY for one"
    text = "Set the number of a limit. It replaces the declared one at once. Running tasks continue."
    action = add_action("set", limits.set_number, text)
    action.add_argument("key", metavar="KEY", help=key)
    action.add_argument(
        "number", type=arguments.number_of_limit, metavar="NUMBER", help="how many tasks at once, or how many starts"
    )
    add_kind(action, default=SUPPRESS)
    action.add_argument("--reason", default="", help="why; the list and the admin show it")
    action.add_argument("--by", help="who sets it (default: your login name)")
    action = add_action("reset", limits.reset_number, "Remove the number that people have set.")
    action.add_argument("key", metavar="KEY", help=key)
    add_kind(action, default=SUPPRESS)


def _actions(verb: CommandParser) -> Add:
    """Return a function that adds an action of a verb."""
    actions = verb.add_subparsers(metavar="ACTION", title="actions", parser_class=arguments.Parser)

    def add_action(name: str, run: Callable[[Console, Any], None], text: str) -> CommandParser:
        action: CommandParser = actions.add_parser(name, help=text, description=text)
        # Unless given here, the values before the action are kept.
        action.add_argument("--backend", metavar="ALIAS", default=SUPPRESS, help="alias in TASKS")
        action.add_argument("--json", action="store_true", default=SUPPRESS, help="write JSON")
        action.set_defaults(run=run, parser=action)
        _add_django_options(action)
        return action

    return add_action


def _add_django_options(verb: CommandParser) -> None:
    """Accept Django's options after the verb, too. Unless given there, those before the verb are kept."""
    group = verb.add_argument_group("Django's options")
    group.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS)
    for name in ("--settings", "--pythonpath"):
        group.add_argument(name, default=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        group.add_argument(name, action="store_true", default=SUPPRESS)


def _add_status(verb: CommandParser, statuses: Iterable[Status]) -> None:
    names = [str(status) for status in statuses]
    text = f"{', '.join(names)}; repeat for several"
    verb.add_argument(
        "--status", action="append", type=str.upper, choices=names, default=[], metavar="STATUS", help=text
    )


def _add_filters(verb: CommandParser, statuses: Iterable[Status]) -> None:
    _add_status(verb, statuses)
    verb.add_argument("--task", action="append", default=[], metavar="NAME", help="tasks with this name")
    verb.add_argument("--queue", action="append", default=[], metavar="NAME", help="tasks of this queue")


def _add_bulk(verb: CommandParser, statuses: Iterable[Status]) -> None:
    verb.add_argument("ids", nargs="*", type=UUID, metavar="ID", help="task id")
    _add_filters(verb, statuses)
    verb.add_argument("--tag", default="", metavar="TAG", help="tasks with this tag")
    verb.add_argument("--limit", type=count(1_000_000_000), help="change at most this number of tasks")
    _add_confirmation(verb, max_batch=10_000, batch=1000)


def _add_pause(verb: CommandParser) -> None:
    verb.add_argument("--reason", default="", help="why; status and the admin show it")
    verb.add_argument("--by", help="who pauses it (default: your login name)")
    end = verb.add_mutually_exclusive_group()
    end.add_argument(
        "--until", type=arguments.moment, metavar="WHEN", help="resume at this time, such as 2030-01-31T09:00"
    )
    end.add_argument(
        "--for", type=arguments.duration, dest="until", metavar="TIME", help="resume after this time, such as 30m or 2h"
    )


def _add_questions(verb: CommandParser) -> None:
    verb.add_argument("--dry-run", action="store_true", help="only print the number of tasks")
    verb.add_argument("--yes", action="store_true", help="do not ask for a confirmation")


def _add_confirmation(verb: CommandParser, *, max_batch: int, batch: int) -> None:
    _add_questions(verb)
    verb.add_argument("--batch", type=count(max_batch), default=batch, help=f"tasks per transaction ({batch:,})")

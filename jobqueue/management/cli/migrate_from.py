"""`migrate_from`: show what becomes of a site's code for another queue, and import the messages of Celery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobqueue.declarations import registry
from jobqueue.declarations.function import FunctionTask
from jobqueue.management.cli.arguments import pair
from jobqueue.management.cli.console import Console, TableColumn, first_line, log
from jobqueue.management.cli.verbs import Verb
from jobqueue.management.migrate_from.broker import HELD, LEFT, Broker, CeleryMessage
from jobqueue.management.migrate_from.scan import scan
from jobqueue.management.migrate_from.systems import System, system_named, system_names
from jobqueue.management.migrate_from.uses import group_fields, in_hours, with_shim
from jobqueue.operations.queries import many

COLUMNS = (
    TableColumn("KIND"),
    TableColumn("NAME", is_flexible=True),
    TableColumn("USES", is_right=True),
    TableColumn("FIRST", is_flexible=True),
    TableColumn("WITH THE SHIM", is_flexible=True),
    TableColumn("NATIVELY", is_flexible=True),
)


MESSAGE_COLUMNS = (
    TableColumn("QUEUE", is_flexible=True),
    TableColumn("TASK", is_flexible=True),
    TableColumn("RESULT"),
    TableColumn("MESSAGES", is_right=True),
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("system", choices=system_names(), metavar="SYSTEM", help=", ".join(system_names()))
    path = "a folder or a file with the site's code (default: the current folder)"
    parser.add_argument("path", nargs="?", type=Path, default=Path(), metavar="PATH", help=path)
    parser.add_argument("--dry-run", action="store_true", help="only show what the command finds")
    broker = "enqueue the messages of Celery that wait in this Redis, such as redis://localhost:6379/0"
    parser.add_argument("--broker", metavar="URL", help=broker)
    queue = "only messages of this queue of Celery; repeatable (default: all queues)"
    parser.add_argument("--queue", action="append", metavar="NAME", help=queue)
    name = "the task that runs in place of a task of Celery, such as send-report=shop.tasks.send_report; repeatable"
    parser.add_argument("--map", type=pair, action="append", default=[], metavar="OLD=NEW", help=name)


def migrate_from(console: Console, flags: Any) -> None:
    """Scan a code base, or import the messages of a broker."""
    if flags.broker is not None:
        if flags.system != "celery":
            raise CommandError("Only messages of Celery can be imported: migrate_from celery --broker URL.")
        _import_messages(console, flags)
        return
    if flags.queue or flags.map:
        raise CommandError("--queue and --map are for --broker URL.")
    if not flags.path.exists():
        raise CommandError(f"{flags.path} does not exist.")
    _report_scan(console, flags.path, system_named(flags.system))


def connect(url: str) -> Any:
    """Return a client of Redis. Raises CommandError without the package, and for another broker."""
    if url.partition(":")[0] not in ("redis", "rediss", "unix"):
        raise CommandError(
            "--broker takes a URL of Redis. If your broker is another one, let the workers of Celery empty it."
        )
    try:
        from redis import Redis
    except ImportError:
        raise CommandError("--broker needs the package redis: pip install redis.") from None
    return Redis.from_url(url)


def _import_messages(console: Console, flags: Any) -> None:
    """Enqueue the messages that wait. Exit with 1 if some are left in the broker."""
    names = dict(flags.map)
    try:
        broker = Broker(connect(flags.broker), lambda name: _find_task(names.get(name, name)))
        queues = flags.queue or broker.queues()
        messages: list[CeleryMessage] = []
        for queue in queues:
            messages += broker.import_messages(broker.read(queue), is_dry_run=flags.dry_run)
        messages += broker.read_held(queues)
    except (ValueError, OSError) as error:  # of the URL, or of a socket
        raise CommandError(f"Redis: {first_line(error)}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "redis":
            raise
        raise CommandError(f"Redis: {first_line(error)}") from error
    counts = Counter(message.result for message in messages)
    if not flags.dry_run:
        log("migrate_from", **{result.replace(" ", "_"): count for result, count in counts.items()})
    _report_messages(console, queues, messages, is_dry_run=flags.dry_run)
    if counts[LEFT]:
        left = f"{many(counts[LEFT], 'message')} of Celery cannot be imported"
        raise CommandError(f"{left}. Let a worker of Celery run what stays in Redis.")


def _find_task(name: str) -> FunctionTask[..., Any] | None:
    """Return the task with a name or a dotted path."""
    offered = registry.offered()
    at_path = (task for task in offered.values() if task.module_path == name)
    return registry.get(name) or next(at_path, None)


def _report_messages(
    console: Console, queues: Sequence[str], messages: Sequence[CeleryMessage], *, is_dry_run: bool
) -> None:
    if console.is_json:
        fields = ("queue", "id", "name", "result", "problem")
        console.write_json([{name: getattr(message, name) for name in fields} for message in messages])
        return
    groups = Counter((message.queue, message.name, message.result) for message in messages)
    if groups:
        console.table(MESSAGE_COLUMNS, [(*group, f"{count:,}") for group, count in sorted(groups.items())])
    for message in messages:
        if message.problem:
            console.write(f"{message.queue}: {message.id or 'a message without id'}: {message.problem}.")
        elif message.result == HELD:
            console.write(f"{message.queue}: {message.id}: a worker of Celery has it. Stop the worker to import it.")
    counts = Counter(message.result for message in messages)
    results = ", ".join(f"{count:,} {result}" for result, count in counts.items()) or "no messages"
    console.write(f"{'Dry run, nothing was changed: ' if is_dry_run else ''}{results} in {', '.join(queues)}.")


def _report_scan(console: Console, path: Path, system: System) -> None:
    result = scan(path, system)
    groups = result.groups()
    if console.is_json:
        minutes = {"natively": result.minutes_natively()}
        if system.shim:
            minutes["with_shim"] = result.minutes_with_shim()
        rows = [group_fields(group, has_shim=bool(system.shim)) for group in groups]
        fields = {"system": system.title, "files": result.files, "uses": rows, "problems": result.problems}
        console.write_json({**fields, "estimated_minutes": minutes})
        return
    columns = COLUMNS if system.shim else [column for column in COLUMNS if column.title != "WITH THE SHIM"]
    rows_of_text = []
    for use, places in groups:
        shim = [with_shim(use.rule)] if system.shim else []
        natively = use.rule.natively if system.shim else _natively(use.rule.natively, use.rule.note)
        rows_of_text.append([use.kind, use.name, f"{len(places):,}", str(places[0]), *shim, natively])
    if rows_of_text:
        if system.shim:
            console.write(f"The shim is {system.shim}, see docs/how-to-celery.md.")
        console.table(columns, rows_of_text)
    if by_hand := result.by_hand():
        console.write()
        console.write("Change by hand:")
        for use, lines in by_hand:
            location = f"{use.location.file}:{','.join(map(str, lines))}"
            console.write(f"{location}: {use.name} ({use.kind}): {use.rule.note}")
    if result.problems:
        console.write()
        console.write("Check these places yourself:")
        for problem in result.problems:
            console.write(problem)
    console.write()
    tasks = sum(use.kind == "task" for use, _ in groups)
    summary = f"{many(result.files, 'file')} of {system.title} read: {many(tasks, 'task')}"
    hand = sum(len(lines) for _, lines in by_hand)
    console.write(f"{summary}, {many(len(result.uses), 'use')}, {many(hand, 'location')} to change by hand.")
    if not result.uses:
        console.write(f"Nothing of {system.title} was found below {path}.")
    elif system.shim:
        console.write(
            f"Estimate: {in_hours(result.minutes_with_shim())} with {system.shim}, "
            f"{in_hours(result.minutes_natively())} to write all with @task. Tests and the deploy are not included."
        )
    else:
        console.write(f"Estimate: {in_hours(result.minutes_natively())}. Tests and the deploy are not included.")


def _natively(text: str, note: str) -> str:
    return f"{text}: {note}" if note else text


VERB = Verb(
    "migrate_from",
    "Show what becomes of a site's code for Celery or another queue, or import waiting messages of Celery.",
    migrate_from,
    add_arguments,
)

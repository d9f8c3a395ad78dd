"""`list`: tasks of a filter, as in the admin's list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from jobqueue.engine import CAP, Engine
from jobqueue.management.cli.arguments import parse_moment, within
from jobqueue.management.cli.backends import engines, report_unknown
from jobqueue.management.cli.console import Console, TableColumn
from jobqueue.management.cli.task_filters import moment_text, read_filters
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import Executor, Schedule, Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import attempt_number, attempts_text, short_type, when
from jobqueue.operations.list.interpretation import select
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.selection import Selection
from jobqueue.operations.queries import many
from jobqueue.values.states import Status

COLUMNS = (
    TableColumn("ID"),
    TableColumn("STATUS"),
    TableColumn("TASK", is_flexible=True),
    TableColumn("QUEUE", is_flexible=True),
    TableColumn("ATTEMPT"),
    TableColumn("WHEN", is_flexible=True),
    TableColumn("ERROR OR ARGUMENTS", is_flexible=True),
)
TIMES = ("enqueued_since", "enqueued_until", "ended_since", "ended_until")


def add_arguments(parser: CommandParser) -> None:
    names = [str(status) for status in Status]
    parser.add_argument("--status", type=str.upper, choices=names, metavar="STATUS", help=", ".join(names))
    parser.add_argument("--task", metavar="NAME", help="tasks with this name")
    parser.add_argument("--queue", metavar="NAME", help="tasks of this queue")
    parser.add_argument("--tag", metavar="TAG", help="tasks with this tag")
    executor = "tasks that this executor runs or has run; a name or an id"
    parser.add_argument("--executor", metavar="NAME", help=executor)
    parser.add_argument("--parent", type=UUID, metavar="ID", help="children of this task")
    parser.add_argument("--schedule", metavar="NAME", help="tasks that this schedule has enqueued")
    example = "such as 2h for two hours ago, or 2030-01-31T09:00"
    for name, what in (("enqueued", "were enqueued"), ("ended", "ended")):
        since, until = f"tasks that {what} later: {example}", f"tasks that {what} earlier"
        parser.add_argument(f"--{name}-since", type=parse_moment, metavar="WHEN", help=since)
        parser.add_argument(f"--{name}-until", type=parse_moment, metavar="WHEN", help=until)
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--error", metavar="TEXT", help="failed tasks whose error contains this text")
    search = "as in the search box: the beginning of an id, key:, task:, args.NAME:VALUE, tag: or error:"
    text.add_argument("--search", metavar="TEXT", help=search)
    parser.add_argument("-n", "--lines", type=within(1, 10_000), default=25, help="number of tasks (25)")
    oldest = "the oldest first; of SCHEDULED, the last that will start"
    parser.add_argument("--reverse", action="store_true", help=oldest)


def list_tasks(console: Console, flags: Any) -> None:
    """Show the tasks of a filter in each database of the backends, and how many are not shown."""
    by_database = {engine.database: engine for engine in engines(flags.backend)}
    selections = {database: _selection(engine, flags) for database, engine in by_database.items()}
    printed: list[Task] = []
    number, is_about = 0, False
    for selection in selections.values():
        printed += read_rows(selection.tasks, _keys(selection, flags), with_payload=True)
        number, is_about = number + selection.number.number, is_about or selection.number.is_about
        for note in _notes(selection):
            console.say(note)
    queues, tasks = ([name] if name else [] for name in (flags.queue, flags.task))
    report_unknown(console, by_database, queues, tasks, has_rows=bool(printed))
    left_off = max(0, number - len(printed))
    if console.is_json:
        listed = [_as_json(task) for task in printed]
        console.write_json({"tasks": listed, "number": number, "is_estimate": is_about, "left_off": left_off})
        return
    if printed:
        console.table(COLUMNS, [_line(task) for task in printed])
    about = "about " if is_about else ""
    more = f", {about}{left_off:,} more not shown: raise -n" if left_off else ""
    console.say(f"{many(len(printed), 'task')}{more}." if printed else "No task matches.")


def _selection(engine: Engine, flags: Any) -> Selection:
    database = engine.database
    filters = read_filters(
        flags,
        database,
        backend=flags.backend,
        parent=flags.parent,
        executor=flags.executor and _executor(flags.executor, database),
        schedule=flags.schedule and _schedule(flags.schedule, database),
        **{name: moment_text(engine, value) for name in TIMES if (value := getattr(flags, name))},
    )
    text = f"error:{flags.error}" if flags.error else flags.search or ""
    try:
        return select(database, text, filters, with_payload=True)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _keys(selection: Selection, flags: Any) -> list[UUID]:
    keys = selection.keys
    if not flags.reverse:
        return list(keys[: flags.lines])
    if isinstance(keys, list) and len(keys) <= CAP:
        return keys[::-1][: flags.lines]
    return list(selection.rows.reverse().values_list("pk", flat=True)[: flags.lines])


def _notes(selection: Selection) -> Iterator[str]:
    """Yield what the list of the admin says about a search."""
    if text := selection.description or selection.search.problem:
        yield text
    if selection.window is not None:
        yield f"Only the newest {selection.window} tasks were searched, because no index has this filter."


def _executor(name: str, database: str) -> UUID:
    """Return the id of an executor by its id, or of the last one with a name."""
    try:
        return UUID(name)
    except ValueError:
        rows = Executor.objects.using(database).filter(name=name).order_by("-started_at")
        if (pk := rows.values_list("pk", flat=True).first()) is None:
            raise CommandError(f"Unknown executor {name!r}. See: manage.py jobqueue executors") from None
        return pk


def _schedule(name: str, database: str) -> int:
    pk = Schedule.objects.using(database).filter(name=name).values_list("pk", flat=True).first()
    if pk is None:
        raise CommandError(f"Unknown schedule {name!r}. See: manage.py jobqueue schedules --all")
    return pk


def _line(task: Any) -> list[object]:
    state, _ = when(task, task.now, options_of(task.backend).aging, task.executor_name)
    attempt = attempts_text(task)
    name = short_type(task.task_type)
    return [task.pk, task.status, name, task.queue_name, attempt, state, task.headline or task.call]


def _as_json(task: Any) -> dict[str, Any]:
    columns = (
        "backend", "queue_name", "priority", "key", "tags", "max_attempts", "enqueued_at", "last_attempted_at",
        "wake_at", "finished_at",
    )  # fmt: skip
    return {
        "id": task.pk,
        "task": task.task_type,
        "status": task.status,
        **{column: getattr(task, column) for column in columns},
        "attempt": attempt_number(task),
        "executor": task.executor_name,
        "arguments": task.call,
        "error": task.headline or None,
    }


VERB = Verb(
    "list", "List tasks, the newest first, with the filters and the search of the admin.", list_tasks, add_arguments
)

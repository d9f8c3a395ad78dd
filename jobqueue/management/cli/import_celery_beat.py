"""`import_celery_beat`: create schedules that do what Celery beat does. A schedule that exists is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobqueue.api import schedules
from jobqueue.declarations import registry
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.schedules import Declaration
from jobqueue.exceptions import JobQueueError
from jobqueue.management.cli.arguments import names_in_file, pair
from jobqueue.management.cli.backends import engines, find_engine
from jobqueue.management.cli.celery_entries import (
    CeleryEntry,
    NotNeeded,
    ignored_options,
    make_declaration,
    read_celery_entries,
)
from jobqueue.management.cli.console import Console, TableColumn, log, shell_user
from jobqueue.management.cli.enqueue import task_named
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import Schedule
from jobqueue.operations.formatting import clock_time
from jobqueue.operations.queries import many
from jobqueue.operations.schedules import describe_schedule
from jobqueue.schedules.rows import from_row_time

COLUMNS = (
    TableColumn("NAME", is_flexible=True),
    TableColumn("CELERY TASK", is_flexible=True),
    TableColumn("TASK", is_flexible=True),
    TableColumn("SCHEDULE", is_flexible=True),
    TableColumn("RESULT"),
)
DISABLED = "Disabled in Celery beat"
NOTHING = (
    "Found no periodic tasks: django_celery_beat is not in INSTALLED_APPS or has none, and CELERY_BEAT_SCHEDULE is not "
    "set. If code fills app.conf.beat_schedule, move the entries to CELERY_BEAT_SCHEDULE."
)


@dataclass(frozen=True)
class Conversion:
    """The result of importing a periodic task."""

    entry: CeleryEntry  # the periodic task
    result: str  # created, updated, exists, not needed or refused
    task: str = ""  # of the schedule; empty if it is refused
    times: str = ""  # the schedule's expression
    notes: tuple[str, ...] = ()  # sentences

    def as_json(self) -> dict[str, Any]:
        columns = {"name": self.entry.name, "source": self.entry.source, "celery_task": self.entry.task}
        return columns | {"task": self.task, "times": self.times, "result": self.result, "notes": self.notes}


@dataclass(frozen=True)
class Importer:
    """Converts one periodic task after another, and saves the schedules."""

    names: Mapping[str, str]  # tasks by Celery's names
    backend: str | None  # None: that of each task
    # The schedules that exist, by backend and name. They are changed only with `is_update`.
    rows: Mapping[tuple[str, str], Schedule]
    now: datetime  # of the database
    is_update: bool  # change schedules that exist
    is_dry_run: bool  # save nothing

    def convert(self, entry: CeleryEntry) -> Conversion:
        """Convert a periodic task, and save its schedule unless this is a dry run."""
        row = next((row for (_, name), row in self.rows.items() if name == entry.name), None)
        if row is not None and not self.is_update:
            return Conversion(entry, "exists", row.task_type, in_words(row))
        try:
            declaration = make_declaration(entry, self._task_for, self.now, self.backend)
            row = self.rows.get((declaration.backend, entry.name))
            if row is not None and row.declared_at:
                raise ValueError(f"code declares a schedule with this name at {row.declared_at}")
            if not self.is_dry_run:
                self._save(declaration, row, is_enabled=entry.is_enabled)
        except NotNeeded as reason:
            return Conversion(entry, "not needed", notes=(f"{reason}.",))
        except (ValueError, TypeError, ArithmeticError, LookupError, JobQueueError, CommandError) as error:
            text = str(error)
            return Conversion(entry, "refused", notes=(text if text.endswith((".", "?")) else f"{text}.",))
        times = in_words(Schedule(**declaration.columns()))
        result = "created" if row is None else "updated"
        return Conversion(entry, result, declaration.task.task_type, times, tuple(_notes(entry, declaration)))

    def _task_for(self, name: str) -> FunctionTask[..., Any]:
        """Return the task for a name of Celery: a mapped one, else the one with this name or at this dotted path."""
        if name in self.names:
            return task_named(self.names[name])
        offered = registry.offered()
        at_path = (task for task in offered.values() if task.module_path == name)
        if (task := offered.get(registry.name_now(name)) or next(at_path, None)) is not None:
            return task
        raise ValueError(f"no task has the name or the dotted path {name!r}. Declare it, or pass --map {name}=TASK")

    def _save(self, declaration: Declaration, row: Schedule | None, *, is_enabled: bool) -> None:
        """Write a schedule. One that is disabled in Celery is paused before its first tick."""
        engine = find_engine(declaration.backend)
        with engine.db.transaction():
            (schedules.create if row is None else schedules.change)(declaration)
            if not is_enabled and (row is None or not row.is_paused_at(engine.db.now())):
                schedules.pause(declaration.name, by=shell_user(), reason=DISABLED, backend=declaration.backend)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what the command would do")
    parser.add_argument("--update", action="store_true", help="also replace schedules that exist, but not their pauses")
    name = "the task that runs in place of a task of Celery, such as send-report=shop.tasks.send_report; repeatable"
    parser.add_argument("--map", type=pair, action="append", default=[], metavar="OLD=NEW", help=name)
    file = "a JSON file with one object, from names of Celery to names of tasks"
    parser.add_argument("--map-file", type=names_in_file, default={}, metavar="FILE", help=file)


def import_celery_beat(console: Console, flags: Any) -> None:
    """Create the schedules that do not exist yet. Exit with 1 if some have no counterpart; the others are created."""
    entries = read_celery_entries()
    if not entries:
        raise CommandError(NOTHING)
    names = {**flags.map_file, **dict(flags.map)}
    for unused in sorted(names.keys() - {entry.task for entry in entries}):
        console.say(f"No periodic task has the name {unused!r}, which --map or --map-file contains.")
    known_engines = engines(flags.backend)
    rows = {(row.backend, row.name): row for engine in known_engines for row in engine.db.schedules.active()}
    now = from_row_time(known_engines[0].db.now())
    importer = Importer(names, flags.backend, rows, now, is_update=flags.update, is_dry_run=flags.dry_run)
    conversions = [importer.convert(entry) for entry in entries]
    counts = Counter(conversion.result for conversion in conversions)
    if not flags.dry_run:
        log("import_celery_beat", **{result.replace(" ", "_"): count for result, count in counts.items()})
    _report(console, conversions, counts, is_dry_run=flags.dry_run)
    if counts["refused"]:
        raise CommandError(f"{many(counts['refused'], 'periodic task')} of Celery beat cannot be imported.")


def _notes(entry: CeleryEntry, declaration: Declaration) -> Iterator[str]:
    if ignored := ignored_options(entry.options):
        yield f"Celery's {', '.join(ignored)} will be ignored."
    priority = declaration.task_options.get("priority")
    if priority != entry.options.get("priority"):
        yield f"Its priority becomes {priority}."
    if not entry.is_enabled:
        yield "It is disabled in Celery, so the schedule is paused."


def in_words(row: Schedule) -> str:
    """Return when a schedule runs: "Every 5 minutes, from 2030-01-01 00:00:00 UTC"."""
    bounds = {"from": row.starts_at, "until": row.ends_at}
    bounds_in_words = [f", {word} {clock_time(from_row_time(at))}" for word, at in bounds.items() if at]
    return describe_schedule(row) + ("" if row.starts_at and row.starts_at == row.ends_at else "".join(bounds_in_words))


def _report(console: Console, conversions: list[Conversion], counts: Counter[str], *, is_dry_run: bool) -> None:
    if console.is_json:
        console.write_json([conversion.as_json() for conversion in conversions])
        return
    console.table(
        COLUMNS,
        [
            (conversion.entry.name, conversion.entry.task, conversion.task, conversion.times, conversion.result)
            for conversion in conversions
        ],
    )
    for conversion in conversions:
        for note in conversion.notes:
            console.write(f"{conversion.entry.name}: {note}")
    results = ", ".join(f"{count:,} {result}" for result, count in counts.items())
    console.write(f"{'Dry run, nothing was written: ' if is_dry_run else ''}{results}.")


VERB = Verb(
    "import_celery_beat",
    "Create schedules from the tables of django-celery-beat and from CELERY_BEAT_SCHEDULE.",
    import_celery_beat,
    add_arguments,
)

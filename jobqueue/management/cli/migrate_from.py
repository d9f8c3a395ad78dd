"""`migrate_from`: show what becomes of a site's code for another queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobqueue.management.cli.console import Console, TableColumn
from jobqueue.management.cli.verbs import Verb
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


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("system", choices=system_names(), metavar="SYSTEM", help=", ".join(system_names()))
    path = "a folder or a file with the site's code (default: the current folder)"
    parser.add_argument("path", nargs="?", type=Path, default=Path(), metavar="PATH", help=path)
    parser.add_argument("--dry-run", action="store_true", help="only show what the command finds")


def migrate_from(console: Console, flags: Any) -> None:
    """Scan a code base."""
    if not flags.path.exists():
        raise CommandError(f"{flags.path} does not exist.")
    _report_scan(console, flags.path, system_named(flags.system))


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
        console.table(columns, rows_of_text)
    if by_hand := result.by_hand():
        console.write()
        console.write("Change by hand:")
        for use, lines in by_hand:
            location = f"{use.location.file}:{','.join(map(str, lines))}"
            console.write(f"{location}: {use.name} ({use.kind}): {use.rule.note}")
    if result.problems:
        console.write()
        console.write("Not read, or to be looked at:")
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
            f"{in_hours(result.minutes_natively())} to write all of it with @task. Tests and the deploy come on top."
        )
    else:
        console.write(f"Estimate: {in_hours(result.minutes_natively())}. Tests and the deploy come on top.")


def _natively(text: str, note: str) -> str:
    return f"{text}: {note}" if note else text


VERB = Verb(
    "migrate_from",
    "Show what becomes of a site's code for Celery or another queue.",
    migrate_from,
    add_arguments,
)

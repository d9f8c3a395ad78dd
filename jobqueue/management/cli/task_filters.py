"""The flags that say which tasks a verb works on, as filters of the admin's list: one language for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from jobqueue.engine import Engine
from jobqueue.operations.formatting import moment_in_words, short_type
from jobqueue.operations.list.names import known_types
from jobqueue.operations.list.selection import at
from jobqueue.schedules.rows import from_row_time
from jobqueue.values.states import Status


def add_status(parser: CommandParser, statuses: Iterable[Status]) -> None:
    names = [str(status) for status in statuses]
    text = f"{', '.join(names)}; repeat for several"
    parser.add_argument(
        "--status", action="append", type=str.upper, choices=names, default=[], metavar="STATUS", help=text
    )


def add_filters(parser: CommandParser, statuses: Iterable[Status]) -> None:
    add_status(parser, statuses)
    parser.add_argument("--task", action="append", default=[], metavar="NAME", help="tasks with this name")
    parser.add_argument("--queue", action="append", default=[], metavar="NAME", help="tasks of this queue")


def read_filters(flags: Any, database: str, **values: object) -> dict[str, str]:
    """Return the filters of a Selection: those of the flags that several verbs have, and further values."""
    tasks = [name for task in _several(flags.task) for name in _full_names(task, database)]
    names = {"status": _several(flags.status), "queue": _several(flags.queue), "task": tasks}
    filters = {name: "\n".join(dict.fromkeys(texts)) for name, texts in names.items()}
    filters |= {name: str(value) for name, value in {"tag": getattr(flags, "tag", ""), **values}.items() if value}
    return {name: text for name, text in filters.items() if text}


def _several(value: str | Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or ()


def _full_names(name: str, database: str) -> list[str]:
    """Return the names of tasks that have a name, or have it as their last component."""
    matching = [task for task in known_types(database) if name in (task, short_type(task))]
    return matching or [name, f".{name}"]  # rows may have a name that code no longer has


def moment_text(engine: Engine, value: datetime | timedelta) -> str:
    """Return a time as a filter has it. A duration counts back from now."""
    return from_row_time(engine.db.now() - value if isinstance(value, timedelta) else value).isoformat()


def describe_filters(flags: Any, statuses: Iterable[str], filters: Mapping[str, str]) -> str:
    """Return the tasks of the flags in words, with the names that a person has written."""
    names = {"status": statuses, "task": flags.task, "queue": flags.queue}
    parts = [f"{name} {' or '.join(values)}" for name, values in names.items() if values]
    parts += [f"{name} {text!r}" for name in ("tag", "error") if (text := getattr(flags, name, ""))]
    if since := at(filters.get("ended_since", "")):
        parts.append(f"since {moment_in_words(since)}")
    return ", ".join(parts)

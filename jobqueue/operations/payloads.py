"""
Values of JSON columns: taken out by the database, read as text, shown masked, indented and cut.

A list does not read the columns: the database extracts what it shows. Here, and only here, errors are hidden from
readers without the permission: `with_payload` is whether the reader has `view_payload`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.db.models import Expression, Func, TextField
from django.db.models.functions import Cast, Left
from django.utils.timezone import localtime, make_naive
from django.utils.translation import gettext as _

from jobqueue.declarations import registry
from jobqueue.models import Task
from jobqueue.operations.backends import options_of
from jobqueue.values.redaction import (
    MASK,
    Secrets,
    argument_secrets,
    name_arguments,
    redact,
    redact_text,
    redact_texts,
)

SMALL_BYTES = 2000  # stored in the row itself, in PostgreSQL
SHOWN_CHARACTERS = 20_000
LINE_CHARACTERS = 80
MAX_ARGUMENTS = 100  # per task; the others are counted
READ_CHARACTERS = 2_000_000  # larger values are not read, because a part cannot be masked reliably

UNREADABLE = object()

RAW = (
    "args",
    "kwargs",
    "options",
    "metadata",
    "inner_state",
    "worker_ids",
    "errors",
    "return_value",
)  # columns of JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedValue:
    """A value as a page shows it."""

    name: str = ""  # of an argument; empty for other values
    text: str = ""  # not escaped for HTML
    note: str = ""  # why something is not shown


class JsonFunc(Func):
    """An expression of one JSON column, for PostgreSQL (template) and for SQLite."""

    sqlite: ClassVar[str]

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template=self.sqlite, **extra)


class LastError(JsonFunc):
    """A member of the newest entry of `errors`; NULL if there is none."""

    output_field = TextField()
    template = "(%(expressions)s -> -1 ->> '%(member)s')"
    sqlite = "JSON_EXTRACT(%(expressions)s, '$[#-1].%(member)s')"


class Small(JsonFunc):
    """A JSON column as text; NULL if it is too large for a list to read."""

    output_field = TextField()
    template = f"CASE WHEN PG_COLUMN_SIZE(%(expressions)s) <= {SMALL_BYTES} THEN (%(expressions)s)::text END"
    sqlite = f"CASE WHEN LENGTH(%(expressions)s) <= {SMALL_BYTES} THEN %(expressions)s END"


def row_annotations() -> dict[str, Any]:
    """Return the annotations of a row of the task list."""
    return {
        "error_class": LastError("errors", member="exception_class_path"),
        "error_message": LastError("errors", member="message"),
        "error_run_seconds": LastError("errors", member="run_seconds"),
        "args_text": Small("args"),
        "kwargs_text": Small("kwargs"),
    }


def raw(column: str, max_characters: int | None = None) -> Expression:
    """Select a JSON column as text, so that one value that Python cannot read does not fail the page."""
    return Left(Cast(column, TextField()), (max_characters or READ_CHARACTERS) + 1)


def parse_column(text: str | None, max_characters: int | None = None) -> Any:
    """Parse a column selected with raw(). Return UNREADABLE if it is too large or not JSON."""
    if text is None:
        return None
    if len(text) > (max_characters or READ_CHARACTERS):
        return UNREADABLE
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE


def listed(value: Any) -> list[Any]:
    """Return a list unchanged, and an empty one for other values."""
    return value if isinstance(value, list) else []


def tags_of(task: Task) -> list[str]:
    """Return the tags of a row. SQL may have written another value."""
    return texts_in(task.tags)


def texts_in(value: Any) -> list[str]:
    return [text for text in listed(value) if isinstance(text, str)]


def show_value(
    value: Any,
    patterns: Sequence[str],
    *path: str,
    secrets: Secrets | None = None,
    max_characters: int = SHOWN_CHARACTERS,
) -> DisplayedValue:
    """
    Return a value as indented JSON, masked.

    path: the value's path, for the patterns. secrets: also masked in its texts. max_characters: shown.
    """
    name = path[-1] if path else ""
    if value is UNREADABLE:
        return DisplayedValue(name=name, note=_("Not shown: too large, or not readable as JSON."))
    masked = redact(value, patterns, *path)
    masked = masked if secrets is None else redact_texts(masked, secrets)
    text = json.dumps(masked, indent=2, ensure_ascii=False)
    if len(text) <= max_characters:
        return DisplayedValue(name=name, text=text)
    note = _("The first %(shown)d of %(whole)d characters.") % {"shown": max_characters, "whole": len(text)}
    return DisplayedValue(name=name, text=text[:max_characters], note=note)


def show_arguments(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> list[DisplayedValue]:
    """
    Return the arguments one by one, named after the parameters of the task's function.

    Only the first MAX_ARGUMENTS are returned. Arguments without a name have numbers, which no pattern matches, so they
    are masked if there is any pattern.
    """
    parameters = registry.parameters(task_type)
    if parameters is None:
        reason = _("Masked, because it has no name: the function of the task is unknown here.")
    else:
        reason = _("Masked, because it has no name: the function of the task takes fewer arguments.")
    rest = name_arguments(parameters, args, kwargs)
    displayed = [
        DisplayedValue(name=argument.name, text=json.dumps(MASK, ensure_ascii=False), note=reason)
        if argument.value is not UNREADABLE and argument.is_hidden(patterns)
        else show_value(argument.value, patterns, argument.name)
        for argument in islice(rest, MAX_ARGUMENTS)
    ]
    if more := sum(1 for _one in rest):
        displayed.append(DisplayedValue(note=_("%(count)d more arguments are not shown.") % {"count": more}))
    return displayed


def arguments_in_line(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> str:
    """Return the first arguments, masked, in one line of at most LINE_CHARACTERS: order_id=57, to="anna"."""
    if UNREADABLE in (args, kwargs):
        return _("too large to show here")
    line = ""
    for argument in name_arguments(registry.parameters(task_type), args, kwargs):
        value = MASK if argument.is_hidden(patterns) else redact(argument.value, patterns, argument.name)
        line += f"{', ' if line else ''}{argument.name}={json.dumps(value, ensure_ascii=False)}"
        if len(line) > LINE_CHARACTERS:
            return f"{line[: LINE_CHARACTERS - 1]}…"
    return line


def named_arguments(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> dict[str, Any]:
    """Return the arguments by name, masked; none if they are too large or not readable."""
    if UNREADABLE in (args, kwargs):
        return {}
    return {
        argument.name: MASK if argument.is_hidden(patterns) else redact(argument.value, patterns, argument.name)
        for argument in name_arguments(registry.parameters(task_type), args, kwargs)
    }


def shown_message(text: Any, patterns: Sequence[str], secrets: Secrets, *, with_payload: bool) -> str:
    """Return the message of an error, masked. It may quote any value, so other readers see only that it is hidden."""
    return redact_text(str(text or ""), patterns, secrets) if with_payload else _("hidden")


def shown_errors(
    errors: Any, patterns: Sequence[str], secrets: Secrets, *, with_payload: bool
) -> list[Mapping[str, Any]]:
    """Return the errors of a task, oldest first, with the secrets of its arguments masked, or without their texts."""

    def traceback(text: Any) -> str:
        return redact_text(str(text or ""), patterns, secrets) if with_payload else ""

    def message(text: Any) -> str:
        return shown_message(text, patterns, secrets, with_payload=with_payload)

    return [
        {
            **entry,
            **({"awaited": message(entry["awaited"])} if "awaited" in entry else {}),
            "message": message(entry.get("message")),
            "traceback": traceback(entry.get("traceback")),
        }
        for entry in listed(redact(errors, ()))  # limits their nesting
        if isinstance(entry, Mapping)
    ]


def find_secrets(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> Secrets:
    """Return the masked arguments of a task."""
    return argument_secrets(registry.parameters(task_type), args, kwargs, patterns)


def secrets_of_tasks(database: str, ids: Collection[UUID]) -> Mapping[UUID, Secrets]:
    """Return the masked arguments of tasks, without tasks that are gone or have large arguments."""
    by_task: dict[UUID, Secrets] = {}
    texts = {"args_text": Small("args"), "kwargs_text": Small("kwargs")}
    if not ids:
        return by_task
    rows = Task.objects.using(database).filter(pk__in=ids).annotate(**texts)
    for pk, backend, task_type, args, kwargs in rows.values_list("pk", "backend", "task_type", *texts):
        if args is not None and kwargs is not None:
            by_task[pk] = find_secrets(task_type, parse_column(args), parse_column(kwargs), options_of(backend).redact)
    return by_task


def read_moment(text: Any) -> datetime | None:
    """Read the time of an error; None if it is invalid, or outside the calendar in the site's time zone."""
    try:
        moment = datetime.fromisoformat(text)
        return _local(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (TypeError, ValueError, OverflowError):
        return None


def from_timestamp(seconds: float) -> datetime | None:
    """Return the moment so many seconds after 1970; None outside the calendar."""
    try:
        return _local(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return None


def _local(moment: datetime) -> datetime:
    return localtime(moment) if settings.USE_TZ else make_naive(moment)

"""A task's values as text to look at: masked, indented, bounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Expression, TextField
from django.db.models.functions import Cast, Left
from django.utils.translation import gettext as _

from jobqueue import registry
from jobqueue.payload import parameters_of
from jobqueue.redact import argument_secrets, redact, redact_text

SHOWN_CHARACTERS = 20_000
READ_CHARACTERS = 2_000_000  # a larger value is not even read: it cannot be masked in parts

UNREADABLE = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """text: to be escaped like any other. note: what is not shown, and why."""

    name: str = ""
    text: str = ""
    note: str = ""


def raw(column: str, most: int | None = None) -> Expression:
    """Select a JSON column as text, so that one value that Python cannot read does not fail the page."""
    return Left(Cast(column, TextField()), (most or READ_CHARACTERS) + 1)


def read(text: str | None, most: int | None = None) -> Any:
    """Read a column selected with raw(); UNREADABLE where that cannot be."""
    if text is None:
        return None
    if len(text) > (most or READ_CHARACTERS):
        return UNREADABLE
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE


def show(value: Any, patterns: Sequence[str], *path: str, most: int = SHOWN_CHARACTERS) -> Shown:
    """Write a value as indented JSON, masked; path: its own place, for the patterns; most: characters of it."""
    name = path[-1] if path else ""
    if value is UNREADABLE:
        return Shown(name=name, note=_("Too large, or not to be read as JSON: not shown."))
    text = json.dumps(redact(value, patterns, *path), indent=2, ensure_ascii=False)
    if len(text) <= most:
        return Shown(name=name, text=text)
    note = _("The first %(shown)d of %(whole)d characters.") % {"shown": most, "whole": len(text)}
    return Shown(name=name, text=text[:most], note=note)


def show_arguments(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> list[Shown]:
    """
    Write the arguments one by one, under the names the task's function gives them.

    Positional arguments of a task that this process does not know have numbers for names, which
    patterns of names do not match.
    """
    shown: list[Shown] = []
    if isinstance(args, list):
        names = parameter_names(task_type)
        shown += [show(part, patterns, names[i] if i < len(names) else str(i)) for i, part in enumerate(args)]
    else:
        shown.append(show(args, patterns))
    if isinstance(kwargs, dict):
        shown += [show(part, patterns, name) for name, part in kwargs.items()]
    else:
        shown.append(show(kwargs, patterns))
    return shown


def mask_error(text: str, task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> str:
    """Mask in what an error said, and in its traceback, what is masked among the arguments."""
    return redact_text(text, patterns, argument_secrets(parameter_names(task_type), args, kwargs, patterns))


def parameter_names(task_type: str) -> Sequence[str]:
    """Name the positional parameters of a task, the context left out; none for a task unknown here."""
    task = registry.get(task_type)
    return parameters_of(task.func, task.takes_context).positional if task else ()

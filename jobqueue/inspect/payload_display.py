"""A task's values as text to look at: masked, indented, bounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db.models import Expression, TextField
from django.db.models.functions import Cast, Left
from django.utils.translation import gettext as _

from jobqueue import registry
from jobqueue.serialization.redaction import MASK, Argument, Secrets, argument_secrets, arguments, redact, redact_texts

SHOWN_CHARACTERS = 20_000
MAX_ARGUMENTS = 100  # per task; further ones are counted
READ_CHARACTERS = 2_000_000  # a larger value is not even read: it cannot be masked in parts

UNREADABLE = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedValue:
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


def show(
    value: Any,
    patterns: Sequence[str],
    *path: str,
    secrets: Secrets | None = None,
    most: int = SHOWN_CHARACTERS,
) -> DisplayedValue:
    """
    Write a value as indented JSON, masked.

    path: the value's own path, for the patterns. secrets: masked in its texts, too. most: the characters to show.
    """
    name = path[-1] if path else ""
    if value is UNREADABLE:
        return DisplayedValue(name=name, note=_("Too large, or not to be read as JSON: not shown."))
    masked = redact(value, patterns, *path)
    masked = masked if secrets is None else redact_texts(masked, secrets)
    text = json.dumps(masked, indent=2, ensure_ascii=False)
    if len(text) <= most:
        return DisplayedValue(name=name, text=text)
    note = _("The first %(shown)d of %(whole)d characters.") % {"shown": most, "whole": len(text)}
    return DisplayedValue(name=name, text=text[:most], note=note)


def show_arguments(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> list[DisplayedValue]:
    """
    Write the arguments one by one, under the names the task's function gives them.

    Only the first MAX_ARGUMENTS are written. Arguments without a name have numbers. No pattern can match these, so they
    are masked if there is any pattern.
    """
    rest = arguments(registry.parameters(task_type), args, kwargs)
    shown = [
        show(MASK if is_hidden(one, patterns) else one.value, patterns, one.name) for one in islice(rest, MAX_ARGUMENTS)
    ]
    if more := sum(1 for _ in rest):
        shown.append(DisplayedValue(note=_("%(count)d more arguments are not shown.") % {"count": more}))
    return shown


def is_hidden(argument: Argument, patterns: Sequence[str]) -> bool:
    """Whether an argument is masked for want of a name; one that was not read has nothing to show anyway."""
    return argument.value is not UNREADABLE and argument.is_hidden(patterns)


def why_masked(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> str:
    """Say why arguments are masked that no pattern names; nothing where there are none."""
    parameters = registry.parameters(task_type)
    if not any(is_hidden(one, patterns) for one in arguments(parameters, args, kwargs)):
        return ""
    if parameters is None:
        return _("The task is not known here, so its arguments cannot be told apart: those without a name are masked.")
    return _("The task takes fewer arguments here, so those without a name cannot be told: they are masked.")


def secrets_of(task_type: str, args: Any, kwargs: Any, patterns: Sequence[str]) -> Secrets:
    """Return the masked arguments of a task."""
    return argument_secrets(registry.parameters(task_type), args, kwargs, patterns)

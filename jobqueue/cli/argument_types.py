"""Values of the command line. Each reader raises ArgumentTypeError that names the valid forms."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from jobqueue.api.queues import MAX_RUNNING_LIMIT
from jobqueue.records import Command, Status

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
LONGEST_SECONDS = 100 * 365 * 86_400


def duration(text: str) -> timedelta:
    """Read 90s, 30m, 12h, 14d or 2w. A number without a unit is refused, because it is ambiguous."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip(), re.ASCII)
    seconds = float(found[1]) * UNITS[found[2]] if found else -1.0
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ArgumentTypeError(f"must be a number with a unit, such as 90s, 30m, 12h, 14d or 2w, not {text!r}")
    return timedelta(seconds=seconds)


def limit(text: str) -> int | None:
    """Read a concurrency limit, or `none`."""
    if text.lower() == "none":
        return None
    try:
        return within(1, MAX_RUNNING_LIMIT)(text)
    except ArgumentTypeError as error:
        hint = " (to run none: manage.py jobqueue pause)" if text.strip() == "0" else ""
        raise ArgumentTypeError(f"{error}, or none{hint}") from None


def moment(text: str) -> timedelta | datetime:
    """Read a duration from now, or a moment; one without a zone is in the site's zone."""
    try:
        return duration(text)
    except ArgumentTypeError:
        pass
    try:
        parsed = parse_datetime(text)
    except ValueError:
        parsed = None
    if parsed is None:
        raise ArgumentTypeError(f"must be a duration (30m) or a moment (2030-01-31T09:00), not {text!r}")
    return make_aware(parsed) if settings.USE_TZ and is_naive(parsed) else parsed


def status(text: str) -> Status:
    try:
        return Status(text.upper())
    except ValueError:
        raise ArgumentTypeError(f"unknown status {text!r}") from None


def executor_command(text: str) -> Command:
    try:
        return Command(text.upper())
    except ValueError:
        raise ArgumentTypeError(f"must be one of {', '.join(one.lower() for one in Command)}, not {text!r}") from None


def text_up_to(length: int) -> Callable[[str], str]:
    """Return a reader of texts with at most `length` characters."""

    def read(text: str) -> str:
        if len(text) > length or "\0" in text:
            raise ArgumentTypeError(f"must be a text of at most {length} characters")
        return text

    return read


def task_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a task id (a UUID), not {text!r}") from None


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON (strings need quotes): {error}") from None


def json_of(kind: type, example: str) -> Callable[[str], Any]:
    """Return a reader of JSON lists, or of objects."""

    def read(text: str) -> Any:
        value = as_json(text)
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"must be JSON like {example}, not {text!r}")
        return value

    return read


def within(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers in a range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ArgumentTypeError(f"must be a whole number from {low:,} to {high:,}, not {text!r}")
        return number

    return read

"""
Values of the command line, and flags that several verbs have.

Each reader of a value raises ArgumentTypeError that names the valid forms.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from jobqueue.api.queues import MAX_RUNNING_LIMIT
from jobqueue.declarations.limits import MAX_LIMIT

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
MAX_DURATION = timedelta(days=100 * 365)


def parse_duration(text: str) -> timedelta:
    """Read 90s, 30m, 12h, 14d or 2w. A number without a unit is refused, because it is ambiguous."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)([smhdw])", text.strip(), re.ASCII)
    try:
        length = timedelta(**{UNITS[match[2]]: float(match[1])}) if match else None
    except OverflowError:
        length = None
    if length is None or length > MAX_DURATION:
        raise ArgumentTypeError(f"must be a number with a unit, such as 90s, 30m, 12h, 14d or 2w, not {text!r}")
    return length


def parse_moment(text: str) -> timedelta | datetime:
    """Read a duration from now, or a moment; one without a zone is in the site's zone."""
    try:
        return parse_duration(text)
    except ArgumentTypeError:
        pass
    try:
        parsed = parse_datetime(text)
    except ValueError:
        parsed = None
    if parsed is None:
        raise ArgumentTypeError(f"must be a duration (30m) or a time (2030-01-31T09:00), not {text!r}")
    return make_aware(parsed) if settings.USE_TZ and is_naive(parsed) else parsed


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


def parse_limit(text: str) -> int | None:
    """Read the limit of a queue, or `none`."""
    try:
        return None if text.lower() == "none" else within(1, MAX_RUNNING_LIMIT)(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}, or none (to run none: manage.py jobqueue pause)") from None


def limit_number(text: str) -> int:
    """Read the number of a limit."""
    try:
        return within(1, MAX_LIMIT)(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error} (to run none: manage.py jobqueue pause)") from None


def json_value(text: str, kind: type = object) -> Any:
    """Read JSON. kind: list or dict, if it must be one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON (strings need quotes): {error}") from None
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"must be a JSON {'list' if kind is list else 'object'}, not {text!r}")
    return value


def pair(text: str) -> tuple[str, str]:
    """Read OLD=NEW."""
    old, _, new = (part.strip() for part in text.partition("="))
    if not old or not new:
        raise ArgumentTypeError(f"must be OLD=NEW, not {text!r}")
    return old, new


def names_in_file(path: str) -> dict[str, str]:
    """Read a JSON file with an object of texts."""
    try:
        value: dict[str, str] = json_value(Path(path).read_text(encoding="utf-8"), dict)
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"cannot be read: {error}") from None
    if not all(isinstance(name, str) for name in value.values()):
        raise ArgumentTypeError(f'must have a text for each name, such as {{"old": "new"}}, not {value!r:.100}')
    return value


def add_pause(parser: CommandParser) -> None:
    parser.add_argument("--reason", default="", help="why; status and the admin show it")
    parser.add_argument("--by", help="who pauses it (default: your login name)")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--until", type=parse_moment, metavar="WHEN", help="resume at this time, such as 2030-01-31T09:00")
    text = "resume after this time, such as 30m or 2h"
    end.add_argument("--for", type=parse_duration, dest="until", metavar="TIME", help=text)


def add_questions(parser: CommandParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print the number of tasks")
    parser.add_argument("--yes", action="store_true", help="do not ask for a confirmation")

"""What people write on a command line, as values. Each raises ArgumentTypeError with what to write instead."""

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

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
LONGEST_SECONDS = 100 * 365 * 86_400


def age(text: str) -> float:
    """Read 90, 90s, 30m, 12h, 14d or 2w as seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip(), re.ASCII)
    seconds = float(found[1]) * UNITS[found[2]] if found else -1.0
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ArgumentTypeError(f"must be a time such as 90s, 30m, 12h, 14d or 2w, not {text!r}")
    return seconds


def length(text: str) -> timedelta:
    """Read an age as a length of time."""
    return timedelta(seconds=age(text))


def most(text: str) -> int | None:
    """Read how many there may be at most; none is any number."""
    if text.lower() == "none":
        return None
    try:
        return within(1, MAX_RUNNING_LIMIT)(text)
    except ArgumentTypeError as error:
        hint = " (to let none run: manage.py jobqueue pause)" if text.strip() == "0" else ""
        raise ArgumentTypeError(f"{error}, or none{hint}") from None


def later(text: str) -> timedelta | datetime:
    """Read an age as so long from now, anything else as a moment; one without a zone is in the site's."""
    try:
        return timedelta(seconds=age(text))
    except ArgumentTypeError:
        pass
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise ArgumentTypeError(f"must be a time from now (30m) or a moment (2030-01-31T09:00), not {text!r}")
    return make_aware(moment) if settings.USE_TZ and is_naive(moment) else moment


def task_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"must be the id of a task, a UUID, not {text!r}") from None


def as_json(text: str) -> Any:
    """Read JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON, in which text wants quotes: {error}") from None


def json_of(kind: type, example: str) -> Callable[[str], Any]:
    """Make a reader of JSON lists, or of objects."""

    def read(text: str) -> Any:
        value = as_json(text)
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"must be JSON like {example}, not {text!r}")
        return value

    return read


def within(low: int, high: int) -> Callable[[str], int]:
    """Make a reader of whole numbers of a range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ArgumentTypeError(f"must be a whole number from {low:,} to {high:,}, not {text!r}")
        return number

    return read

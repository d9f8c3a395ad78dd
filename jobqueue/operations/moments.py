"""Moments as rows have them in JSON, read for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils.timezone import localtime, make_naive


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

"""The OPTIONS of TASKS[alias]."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from jobqueue import http_tokens
from jobqueue.backoff import Backoff
from jobqueue.http_tokens import Token

DAY_SECONDS = 86_400.0
LONGEST_RETENTION = 100 * 365 * DAY_SECONDS  # databases can store a moment so long ago


def default_retention() -> dict[str, float | None]:
    return {"SUCCESSFUL": DAY_SECONDS, "CANCELLED": DAY_SECONDS, "FAILED": 7 * DAY_SECONDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """OPTIONS of one backend; each key is the field's name in capitals."""

    database: str = "default"  # alias in DATABASES that holds the queue
    heartbeat_timeout: float = 30.0  # seconds without a heartbeat after which an executor is lost
    poll_interval: float = 1.0  # seconds; longest sleep of an idle executor without a notification
    aging: float = 60.0  # seconds of waiting worth one point of priority
    max_attempts: int = 4  # of a function or of one poll, with the first one
    backoff: Backoff = field(default_factory=Backoff)  # wait between attempts
    timeout: float | None = None  # seconds for one attempt
    max_executor_losses: int = 3  # lost executors after which a task is FAILED
    max_payload_bytes: int = 1_048_576  # arguments, messages, results, each
    retention: Mapping[str, float | None] = field(
        default_factory=default_retention
    )  # seconds; None keeps, 0 deletes at once
    notify: bool = True  # LISTEN/NOTIFY saves waiting for the next poll
    redact: tuple[str, ...] = (
        "*password*",
        "*passwd*",
        "*secret*",
        "*token*",
        "*api_key*",
        "*apikey*",
        "*authorization*",
        "*cookie*",
        "*credential*",
        "*private_key*",
        "*pwd*",
        "*signature*",
    )  # argument paths shown masked
    http_tokens: tuple[Token, ...] = ()  # programs that may submit tasks over HTTP
    ready_age_limit: float | None = 300.0  # seconds that a READY task may wait before health/ready answers 503


KEYS = {f.name.upper(): f.name for f in fields(Options)}
# A rank is a moment minus priority x AGING. A day keeps it far from the ends of the calendar.
RANGES: Mapping[str, tuple[float, float]] = {
    "HEARTBEAT_TIMEOUT": (0.3, DAY_SECONDS),
    "POLL_INTERVAL": (0.01, 3600.0),
    "AGING": (0.0, DAY_SECONDS),
    "MAX_ATTEMPTS": (1, 1_000_000),
    "TIMEOUT": (0.001, 365 * DAY_SECONDS),
    "READY_AGE_LIMIT": (0.001, 365 * DAY_SECONDS),
    "MAX_EXECUTOR_LOSSES": (1, 1_000_000),
    "MAX_PAYLOAD_BYTES": (64, 256 * 1_048_576),
}


def seconds(value: Any) -> Any:
    """Return a duration in seconds. Settings may use a timedelta."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def problems(raw: Any) -> Iterator[str]:
    """Yield the problems of OPTIONS."""
    if not isinstance(raw, Mapping):
        yield f"must be a dict, not {raw!r}"
        return
    for key, value in raw.items():
        match key:
            case _ if key not in KEYS:
                near = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0.6)
                meant = f" (did you mean {near[0]!r}?)" if near else ""
                yield f"unknown option {key!r}{meant}; options are {', '.join(KEYS)}"
            case "TIMEOUT" | "READY_AGE_LIMIT" if value is None:
                pass
            case _ if key in RANGES:
                low, high = RANGES[key]
                number = seconds(value)
                whole = key.startswith("MAX_")
                if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
                    kind = "whole number" if whole else "number of seconds or a timedelta"
                    yield f"{key} must be a {kind}, not {value!r}"
                elif not low <= number <= high:
                    yield f"{key} must lie between {low} and {high}, not {value!r}"
            case "DATABASE":
                if not isinstance(value, str):
                    yield f"DATABASE must be an alias in DATABASES, not {value!r}"
            case "BACKOFF":
                if not isinstance(value, Backoff):
                    yield f"BACKOFF must be a jobqueue.Backoff, not {value!r}"
            case "NOTIFY":
                if not isinstance(value, bool):
                    yield f"NOTIFY must be True or False, not {value!r}"
            case "REDACT":
                is_list = isinstance(value, list | tuple | set | frozenset)
                if not is_list or not all(isinstance(path, str) for path in value):
                    yield f"REDACT must be a list of argument paths, not {value!r}"
            case "HTTP_TOKENS":
                yield from http_tokens.problems(value)
            case "RETENTION":
                yield from _retention_problems(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _retention_problems(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"RETENTION must be a dict of status and seconds, not {value!r}"
        return
    for status, kept in value.items():
        number = seconds(kept)
        if status not in default_retention():
            yield f"RETENTION knows SUCCESSFUL, CANCELLED and FAILED, not {status!r}"
        elif number is not None and not (_is_number(number) and 0 <= number <= LONGEST_RETENTION):
            yield f"RETENTION[{status!r}] must be seconds or a timedelta, a century at most, or None, not {kept!r}"


def parse(raw: Mapping[str, Any], alias: str = "default") -> Options:
    """
    Parse the OPTIONS of TASKS[alias]. Raises ImproperlyConfigured, which lists all problems.
    """
    if invalid := list(problems(raw)):
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: " + "; ".join(invalid))
    values = {KEYS[key]: seconds(value) for key, value in raw.items()}
    if "retention" in values:
        kept = {status: seconds(value) for status, value in values["retention"].items()}
        values["retention"] = default_retention() | kept
    if "http_tokens" in values:
        values["http_tokens"] = http_tokens.parse(values["http_tokens"])
    if "redact" in values:
        values["redact"] = tuple(values["redact"])
    return Options(**values)


@cache
def options_for(alias: str) -> Options:
    """Return the options of a jobqueue backend. Raises ImproperlyConfigured if TASKS has no such alias."""
    from django.conf import settings

    tasks = getattr(settings, "TASKS", None) or {}
    if alias not in tasks:
        raise ImproperlyConfigured(
            f"TASKS has no backend {alias!r}; it has {', '.join(map(repr, tasks)) or 'none'}. "
            "Add {'BACKEND': 'jobqueue.backend.JobQueueBackend'} under that name."
        )
    return parse(tasks[alias].get("OPTIONS", {}), alias)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "TASKS":
        options_for.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.conf")

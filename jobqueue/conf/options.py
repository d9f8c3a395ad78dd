"""The OPTIONS of TASKS[alias]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from msgspec import Meta, convert

from jobqueue.conf import http_tokens
from jobqueue.conf.http_tokens import Token
from jobqueue.values.backoff import Backoff
from jobqueue.values.kinds import (
    DAY_SECONDS,
    YEAR_SECONDS,
    Flag,
    MaxAttempts,
    Timeout,
    between,
    described,
    plain,
    problems,
)
from jobqueue.values.text import did_you_mean

RetryBackoff = Annotated[Backoff, described("a jobqueue.Backoff")]
CodeWait = Annotated[
    Annotated[float, Meta(ge=0, le=YEAR_SECONDS)] | None,
    described("seconds or a timedelta, a year at most, or None"),
]
KeepFor = Annotated[float, Meta(ge=0, le=100 * YEAR_SECONDS)]  # databases can store a moment so long ago
Final = Annotated[str, Meta(pattern="^(SUCCESSFUL|CANCELLED|FAILED)$")]
Retention = Annotated[
    dict[Final, KeepFor | None],
    described("a dict of SUCCESSFUL, CANCELLED or FAILED and seconds or a timedelta, a century at most, or None"),
]
TickRetention = Annotated[KeepFor | None, described("seconds or a timedelta, a century at most, or None")]
SECRETS = (
    "*password* *passwd* *secret* *token* *api_key* *apikey* *authorization* *cookie* *credential* *private_key* *pwd* "
    "*signature*"
)


def default_retention() -> Retention:
    return {"SUCCESSFUL": DAY_SECONDS, "CANCELLED": DAY_SECONDS, "FAILED": 7 * DAY_SECONDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    OPTIONS of one backend; each key is the field's name in capitals. option_problems() checks the types.

    It has more than 15 attributes because each key of OPTIONS is a field.
    """

    database: Annotated[str, described("an alias in DATABASES")] = "default"  # where the tables are
    heartbeat_timeout: Annotated[float, between(0.3, DAY_SECONDS)] = 30.0  # without a heartbeat, an executor is lost
    poll_interval: Annotated[float, between(0.01, 3600.0)] = 1.0  # longest sleep of an idle executor
    # The waiting that is worth one point of priority. A rank is a moment minus priority x AGING. A day keeps it far
    # from the ends of the calendar.
    aging: Annotated[float, between(0.0, DAY_SECONDS)] = 60.0
    max_attempts: MaxAttempts = 4  # of a function or of one poll, with the first one
    backoff: RetryBackoff = field(default_factory=Backoff)  # wait between attempts
    timeout: Timeout = None  # of one attempt
    max_executor_losses: MaxAttempts = 3  # lost executors after which a task is FAILED
    # How long a call waits for code that takes its arguments, before it is FAILED. None: until there is such code.
    unbound_call_timeout: CodeWait = DAY_SECONDS
    # of the arguments, a message, a state or a result, as JSON
    max_payload_bytes: Annotated[int, between(64, 256 * 1_048_576, "a whole number")] = 1_048_576
    retention: Retention = field(default_factory=default_retention)  # None keeps, 0 deletes at once
    keep_messages: Flag = False  # consumed ones, as long as their task
    keep_log_lines: Annotated[int, between(0, 1000, "a whole number")] = 50  # of each attempt or poll
    tick_retention: TickRetention = 90 * DAY_SECONDS  # of schedules; None keeps
    notify: Flag = True  # LISTEN/NOTIFY saves waiting for the next poll
    runserver: Flag = True  # `manage.py runserver` runs its tasks, with DEBUG
    redact: Annotated[tuple[str, ...], described("a list of argument paths")] = tuple(SECRETS.split())  # shown masked
    # paths of classes with values that travel from an enqueue to the run
    middleware: Annotated[tuple[str, ...], described("a list of paths of classes")] = ()
    # options of tasks by patterns of their names; declarations/routes.py reads and checks them
    routes: Any = None
    http_tokens: tuple[Token, ...] = ()  # programs that may submit tasks over HTTP
    ready_age_limit: Timeout = 300.0  # how long a READY task may wait before health/ready answers 503


KEYS = {f.name.upper(): f.name for f in fields(Options)}
_TYPES = get_type_hints(Options, include_extras=True)


def option_problems(raw: Any) -> Iterator[str]:
    """Yield the problems of OPTIONS."""
    if not isinstance(raw, Mapping):
        yield f"must be a dict, not {raw!r}"
        return
    for key, value in raw.items():
        if key not in KEYS:
            yield f"unknown option {key!r}{did_you_mean(str(key), KEYS)}; options are {', '.join(KEYS)}"
        elif key == "HTTP_TOKENS":
            yield from http_tokens.token_problems(value)
        elif key != "ROUTES":
            yield from problems(key, value, _TYPES[KEYS[key]])


def parse_options(raw: Mapping[str, Any], alias: str = "default") -> Options:
    """
    Parse the OPTIONS of TASKS[alias]. Raises ImproperlyConfigured, which lists all problems.
    """
    if invalid := list(option_problems(raw)):
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: " + "; ".join(invalid))
    values: dict[str, Any] = {
        name: http_tokens.parse(raw[key]) if key == "HTTP_TOKENS" else convert(plain(raw[key]), _TYPES[name])
        for key, name in KEYS.items()
        if key in raw and key != "ROUTES"
    }
    if "retention" in values:
        values["retention"] = default_retention() | values["retention"]
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
    return parse_options(tasks[alias].get("OPTIONS", {}), alias)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "TASKS":
        options_for.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.conf.options")

"""Turn what a client submits into a submission of the backend, or into a list of what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_naive

from jobqueue import registry
from jobqueue.backend import AnyTask, Submission
from jobqueue.compat import InvalidTask
from jobqueue.http.answers import Problem
from jobqueue.http.bodies import pointer, unknown_members
from jobqueue.http.callers import Caller
from jobqueue.printable import printable
from jobqueue.serialization.text import is_text

MOST_IDEMPOTENCY_CHARACTERS = 255


class Wrong(ValueError):
    """A member of the body is not what it should be."""


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong("must be a text")
    return value


def queue_name(value: Any) -> str:
    if printable(name := text(value)) != name:
        raise Wrong("must not contain control characters")
    return name


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise Wrong("must be a whole number")
    return int(value)


def moment(value: Any) -> datetime | timedelta:
    """Read a moment, or seconds from now."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return timedelta(seconds=value)
        except OverflowError:
            raise Wrong("must lie within a thousand years") from None
    try:
        found = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    if found is None or is_naive(found):
        raise Wrong("must be a date-time with an offset, such as 2030-01-31T12:00:00Z, or seconds from now")
    try:
        return found if settings.USE_TZ else make_naive(found)
    except OverflowError:
        raise Wrong("must lie within the calendar") from None


# The names of members, those of using(), and how they are read.
OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "queue": ("queue_name", queue_name),
    "priority": ("priority", whole_number),
    "run_after": ("run_after", moment),
    "max_attempts": ("max_attempts", whole_number),
}
MEMBERS = {"task", "args", "kwargs", "idempotency_key", *OPTIONS}


@dataclass(slots=True)
class Reading:
    """What became of one submission. `forbidden` are the problems of who asks, not of what is asked."""

    submission: Submission | None = None
    problems: list[Problem] = field(default_factory=list)
    forbidden: list[Problem] = field(default_factory=list)


def read(value: Any, caller: Caller) -> Reading:
    """Read one submission and find everything that is wrong with it, but for its arguments, which the backend knows."""
    if not isinstance(value, dict):
        return Reading(problems=[Problem("must be a JSON object")])
    reading = Reading(problems=unknown_members(value, MEMBERS))
    args, kwargs, key = value.get("args"), value.get("kwargs"), value.get("idempotency_key")
    if not isinstance(args, list | None):
        reading.problems.append(Problem("must be a JSON array", "/args"))
    if not isinstance(kwargs, dict | None):
        reading.problems.append(Problem("must be a JSON object", "/kwargs"))
    if key is not None and not is_text(key, MOST_IDEMPOTENCY_CHARACTERS):
        limit = MOST_IDEMPOTENCY_CHARACTERS
        reading.problems.append(Problem(f"must be a text of 1 to {limit} characters", "/idempotency_key"))
    task = _task(value, caller, reading)
    if task is not None and not reading.problems and not reading.forbidden:
        asked = {member: value[member] for member in OPTIONS if value.get(member) is not None}
        stored_key = None if key is None else owned_key(caller.owner, key)
        reading.submission = Submission(
            task=task, args=args or [], kwargs=kwargs or {}, idempotency_key=stored_key, asked=asked
        )
    return reading


def owned_key(owner: str, key: str) -> str:
    """Return the stored form of an idempotency key. The same text from another owner gives another key."""
    return sha256(f"{owner}\0{key}".encode(errors="surrogatepass")).hexdigest()  # a key contains no NUL


def _task(value: dict[str, Any], caller: Caller, reading: Reading) -> AnyTask | None:
    """Find the task and give it the options that were asked for."""
    name = value.get("task")
    if not isinstance(name, str):
        reading.problems.append(Problem("must be the name of a task", "/task"))
        return None
    declared = registry.get(name)
    alias = declared.backend if declared else caller.backends[0]
    queue_name = _queue_of(value, declared) if declared and declared.allow_http else None
    problem = caller.problem_with(alias, name, queue_name)
    if problem is not None:
        reading.forbidden.append(problem)
        return None
    if declared is None or not declared.allow_http or alias not in caller.backends:
        reading.problems.append(Problem("no task of this name takes submissions: see @task(allow_http=True)", "/task"))
        return None
    task = declared
    for member, (option, convert) in OPTIONS.items():
        if value.get(member) is None:
            continue
        try:
            task = task.using(**{option: convert(value[member])})
        except (Wrong, InvalidTask) as error:
            reading.problems.append(Problem(str(error), pointer(member)))
    return task


def _queue_of(value: dict[str, Any], declared: AnyTask) -> str:
    given = value.get("queue")
    return given if isinstance(given, str) else declared.queue_name

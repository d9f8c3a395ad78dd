"""Turn the JSON of a submission into a submission of the backend, or into problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
from django.conf import settings
from django.utils.timezone import make_naive

from jobqueue import registry
from jobqueue.backend import AnyTask, Submission
from jobqueue.compat import InvalidTask
from jobqueue.http import schemas
from jobqueue.http.auth import Caller
from jobqueue.http.request_body import pointer, problem_of
from jobqueue.http.schemas import Problem
from jobqueue.printable import printable

# Members of a submission, and the options of using() that they set.
OPTIONS = {"queue": "queue_name", "priority": "priority", "run_after": "run_after", "max_attempts": "max_attempts"}


class InvalidField(ValueError):
    """A member has the right type and a value that is not allowed."""


@dataclass(slots=True)
class ParsedSubmission:
    """A submission, or why there is none. forbidden: problems of the caller's rights. problems: all others."""

    submission: Submission | None = None
    problems: list[Problem] = field(default_factory=list)
    forbidden: list[Problem] = field(default_factory=list)


def parse(value: Any, caller: Caller) -> ParsedSubmission:
    """Parse one submission. The backend checks its arguments."""
    try:
        request = msgspec.convert(value, schemas.Submission)
    except msgspec.ValidationError as error:
        return ParsedSubmission(problems=[problem_of(error)])
    parsed = ParsedSubmission()
    key = request.idempotency_key
    if key is not None and "\0" in key:
        parsed.problems.append(Problem("must not contain NUL characters", "/idempotency_key"))
    task = _task(request, caller, parsed)
    if task is not None and not parsed.problems:
        parsed.submission = Submission(
            task=task,
            args=request.args or [],
            kwargs=request.kwargs or {},
            idempotency_key=None if key is None else owned_key(caller.owner, key),
            asked={member: value[member] for member in OPTIONS if value.get(member) is not None},
        )
    return parsed


def owned_key(owner: str, key: str) -> str:
    """Return the stored form of an idempotency key. The same text from another owner gives another key."""
    return sha256(f"{owner}\0{key}".encode()).hexdigest()  # a key contains no NUL


def _task(request: schemas.Submission, caller: Caller, parsed: ParsedSubmission) -> AnyTask | None:
    """Return the task with the options of the request."""
    declared = registry.get(request.task)
    alias = declared.backend if declared else caller.backends[0]
    is_open = declared is not None and declared.allow_http
    queue_name = (request.queue or declared.queue_name) if declared and is_open else None
    problem = caller.problem_with(alias, request.task, queue_name)
    if problem is not None:
        parsed.forbidden.append(problem)
        return None
    if declared is None or not is_open or alias not in caller.backends:
        parsed.problems.append(Problem("no task of this name takes submissions: see @task(allow_http=True)", "/task"))
        return None
    task = declared
    for member, option in OPTIONS.items():
        if (value := getattr(request, member)) is None:
            continue
        try:
            task = task.using(**{option: _option(value)})
        except (InvalidField, InvalidTask) as error:
            parsed.problems.append(Problem(str(error), pointer(member)))
    return task


def _option(value: Any) -> Any:
    """Turn a member into what using() takes."""
    match value:
        case str() if printable(value) != value:
            raise InvalidField("must not contain control characters")
        case float():
            return timedelta(seconds=value)
        case datetime() if not settings.USE_TZ:
            try:
                return make_naive(value)
            except OverflowError:
                raise InvalidField("must lie within the calendar") from None
    return value

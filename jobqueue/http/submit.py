"""POST submit/ and submit/batch/."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.timezone import make_naive

from jobqueue.backend import AnyTask, EnqueueRequest, InvalidSubmissions, JobQueueBackend
from jobqueue.conf.compat import InvalidTask, task_backends
from jobqueue.conf.options import options_for
from jobqueue.declarations import registry
from jobqueue.exceptions import DuplicateKey, PayloadTooLarge
from jobqueue.http import schemas
from jobqueue.http.auth import Caller
from jobqueue.http.endpoint import endpoint
from jobqueue.http.request_body import ENVELOPE_BYTES, parse_problem, read_json
from jobqueue.http.request_headers import IDEMPOTENCY_KEY, idempotency_key, refuse_idempotency_key
from jobqueue.http.responses import MAX_PROBLEMS, HttpError, respond, task_url
from jobqueue.http.schemas import MAX_BATCH, BatchItem, Problem, TaskReference
from jobqueue.values.kinds import EARLIEST_YEAR, LATEST_YEAR
from jobqueue.values.records import Enqueued
from jobqueue.values.text import printable

logger = logging.getLogger(__name__)

# Members of a submission, and the options of using() that they set.
OPTIONS = {"queue": "queue_name", "priority": "priority", "run_after": "run_after", "max_attempts": "max_attempts"}
STATUS_OF: dict[type[Exception], int] = {DuplicateKey: 409, PayloadTooLarge: 413}


@endpoint(
    "POST",
    {201: ("Enqueued.", TaskReference), 200: ("The idempotency key exists.", TaskReference)},
    (409,),
    permission="submit_task",
    body=schemas.Submission,
    headers=(IDEMPOTENCY_KEY,),
)
def submit(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Enqueue a task."""
    limit = max(options_for(alias).max_payload_bytes for alias in caller.backends)
    value = read_json(request, max_bytes=limit + ENVELOPE_BYTES)
    if isinstance(value, dict):
        value["idempotency_key"] = idempotency_key(request, value.get("idempotency_key"), "idempotency_key")
    (enqueued,) = _submit(caller, [value], [""])
    link = TaskReference(enqueued.id, enqueued.status, task_url(request, enqueued.id))
    return respond(link, 201, {"Location": link.url}) if enqueued.created else respond(link)


@endpoint(
    "POST",
    {201: ("Enqueued.", list[BatchItem]), 200: ("All idempotency keys exist.", list[BatchItem])},
    (409,),
    permission="submit_task",
    body=schemas.Batch,
)
def submit_batch(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Enqueue up to 1,000 tasks, all or none."""
    refuse_idempotency_key(request)
    values = read_json(request)
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_BATCH:
        raise HttpError(400, f"The body must be a JSON array of 1 to {MAX_BATCH:,} submissions.")
    results = _submit(caller, values, [f"/{index}" for index in range(len(values))])
    items = [
        BatchItem(enqueued.id, enqueued.status, task_url(request, enqueued.id), enqueued.created)
        for enqueued in results
    ]
    return respond(items, 201 if any(item.created for item in items) else 200)


def _submit(caller: Caller, values: Sequence[Any], pointers: Sequence[str]) -> list[Enqueued]:
    """Enqueue submissions, all or none. pointers: JSON pointers to them. Raises HttpError."""
    submissions: list[EnqueueRequest] = []
    problems: dict[int, list[Problem]] = {403: [], 400: []}
    for value, pointer in zip(values, pointers, strict=True):
        try:
            submissions.append(_parse(value, caller))
        except HttpError as error:
            listed = problems[error.status]
            listed += [Problem(problem.what, pointer + problem.where) for problem in error.problems]
            if len(listed) > MAX_PROBLEMS:
                break
    for status, listed in problems.items():
        if listed:
            raise HttpError(status, *listed)
    backend = _find_backend(submissions)
    try:
        results = backend.submit(submissions)
    except InvalidSubmissions as error:
        refused = [
            Problem(str(reason), pointers[number] + _where(submissions[number], reason))
            for number, reason in error.errors.items()
        ]
        statuses = {STATUS_OF.get(type(reason), 400) for reason in error.errors.values()}
        raise HttpError(statuses.pop() if len(statuses) == 1 else 400, *refused) from None
    created = sum(enqueued.created for enqueued in results)
    existing = len(results) - created
    logger.info("request.accepted action=submit by=%s created=%d existing=%d", caller.name, created, existing)
    return results


def _parse(value: Any, caller: Caller) -> EnqueueRequest:
    """Return a submission. The backend checks its arguments later. Raises HttpError: 400, 403."""
    try:
        request = msgspec.convert(value, schemas.Submission)
    except msgspec.ValidationError as error:
        raise HttpError(400, parse_problem(error)) from None
    task = _task(request, caller)
    problems: list[Problem] = []
    for member, option in OPTIONS.items():
        if (wanted := getattr(request, member)) is not None:
            try:
                task = task.using(**{option: _option(wanted)})
            except (ValueError, InvalidTask) as error:
                problems.append(Problem(str(error), f"/{member}"))
    if problems:
        raise HttpError(400, *problems)
    key = request.idempotency_key
    return EnqueueRequest(
        task=task,
        args=request.args or [],
        kwargs=request.kwargs or {},
        idempotency_key=None if key is None else owned_key(caller.owner, key),
        asked={member: value[member] for member in OPTIONS if value.get(member) is not None},
    )


def owned_key(owner: str, key: str) -> str:
    """Return the stored form of an idempotency key. The same text from another owner gives another key."""
    return sha256(f"{owner}\0{key}".encode()).hexdigest()  # a key contains no NUL


def _task(request: schemas.Submission, caller: Caller) -> AnyTask:
    """Return the task of a submission. Raises HttpError: 403, or 400 if HTTP may not submit it."""
    declared = registry.get(request.task)
    task = declared if declared is not None and declared.allow_http else None
    alias = declared.backend if declared else caller.backends[0]
    problem = caller.problem_with(alias, request.task, (request.queue or task.queue_name) if task else None)
    if problem is not None:
        raise HttpError(403, problem)
    if task is None or alias not in caller.backends:
        raise HttpError(400, Problem("no task of this name takes submissions: see @task(allow_http=True)", "/task"))
    return task


def _option(value: Any) -> Any:
    """Turn a member into what using() takes. Raises ValueError."""
    match value:
        case str() if printable(value) != value:
            raise ValueError("must not contain control characters")
        case float():
            return timedelta(seconds=value)
        case datetime() if not settings.USE_TZ:
            try:
                return make_naive(value)
            except OverflowError:
                raise ValueError(f"must lie between the years {EARLIEST_YEAR} and {LATEST_YEAR}") from None
    return value


def _find_backend(submissions: Sequence[EnqueueRequest]) -> JobQueueBackend:
    first, *others = dict.fromkeys(submission.task.backend for submission in submissions)
    if others:
        raise HttpError(400, f"A batch needs tasks of one backend, not of {first!r} and {others[0]!r}.")
    backend = task_backends[first]
    assert isinstance(backend, JobQueueBackend)
    return backend


def _where(submission: EnqueueRequest, error: Exception) -> str:
    """Return a pointer to the invalid member. If there are args and kwargs, either may be the one that does not fit."""
    if isinstance(error, DuplicateKey):
        return "/idempotency_key"
    if submission.args and submission.kwargs:
        return ""
    return "/kwargs" if submission.kwargs else "/args"

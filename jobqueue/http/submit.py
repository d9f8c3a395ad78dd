"""POST submit/ and submit/batch/."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse

from jobqueue.backend import InvalidSubmissions, JobQueueBackend, Submission
from jobqueue.compat import task_backends
from jobqueue.conf import options_for
from jobqueue.exceptions import DuplicateKey, PayloadTooLarge
from jobqueue.http.auth import Caller, authenticate
from jobqueue.http.request_body import ENVELOPE_BYTES, pointer, read_json
from jobqueue.http.responses import MAX_PROBLEMS, HttpError, endpoint, respond, task_url
from jobqueue.http.schemas import MAX_BATCH, BatchItem, Problem, TaskLink
from jobqueue.http.submission_parser import parse
from jobqueue.records import Enqueued

logger = logging.getLogger(__name__)


@endpoint("POST")
def submit(request: HttpRequest) -> HttpResponse:
    """Enqueue one task: 201, or 200 if its idempotency key exists."""
    caller = authenticate(request, "submit_task")
    limit = max(options_for(alias).max_payload_bytes for alias in caller.backends)
    value = read_json(request, max_bytes=limit + ENVELOPE_BYTES)
    (enqueued,) = _submit(caller, [value], [""])
    link = TaskLink(enqueued.id, enqueued.status, task_url(request, enqueued.id))
    return respond(link, 201, {"Location": link.url}) if enqueued.created else respond(link)


@endpoint("POST")
def submit_batch(request: HttpRequest) -> HttpResponse:
    """Enqueue a list of tasks, all or none: 201, or 200 if all idempotency keys exist."""
    caller = authenticate(request, "submit_task")
    values = read_json(request)
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_BATCH:
        raise HttpError(400, f"The body must be a JSON array of 1 to {MAX_BATCH:,} submissions.")
    results = _submit(caller, values, [pointer(place) for place in range(len(values))])
    items = [BatchItem(one.id, one.status, task_url(request, one.id), one.created) for one in results]
    return respond(items, 201 if any(item.created for item in items) else 200)


def _submit(caller: Caller, values: Sequence[Any], places: Sequence[str]) -> list[Enqueued]:
    """Enqueue submissions, all or none. places: JSON pointers to them. Raises HttpError."""
    submissions: list[Submission] = []
    forbidden: list[Problem] = []
    invalid: list[Problem] = []
    for value, place in zip(values, places, strict=True):
        parsed = parse(value, caller)
        forbidden += [Problem(problem.what, place + problem.where) for problem in parsed.forbidden]
        invalid += [Problem(problem.what, place + problem.where) for problem in parsed.problems]
        if parsed.submission is not None:
            submissions.append(parsed.submission)
        if len(forbidden) > MAX_PROBLEMS or len(invalid) > MAX_PROBLEMS:
            break
    for status, problems in ((403, forbidden), (400, invalid)):
        if problems:
            raise HttpError(status, *problems)
    backend = _backend_of(submissions, places)
    try:
        results = backend.submit(submissions)
    except InvalidSubmissions as error:
        refused = [
            Problem(str(reason), places[number] + _where(submissions[number], reason))
            for number, reason in error.errors.items()
        ]
        raise HttpError(_status(error), *refused) from None
    created = sum(enqueued.created for enqueued in results)
    logger.info("request.accepted action=submit by=%s created=%d existing=%d", caller, created, len(results) - created)
    return results


def _backend_of(submissions: Sequence[Submission], places: Sequence[str]) -> JobQueueBackend:
    first = submissions[0].task.backend
    others = [
        Problem(f"has backend {submission.task.backend!r}, the first has {first!r}; a batch needs one backend", place)
        for submission, place in zip(submissions, (f"{place}/task" for place in places), strict=True)
        if submission.task.backend != first
    ]
    if others:
        raise HttpError(400, *others)
    backend = task_backends[first]
    assert isinstance(backend, JobQueueBackend)
    return backend


def _status(error: InvalidSubmissions) -> int:
    match {type(refused) for refused in error.errors.values()}:
        case kinds if kinds == {DuplicateKey}:
            return 409
        case kinds if kinds == {PayloadTooLarge}:
            return 413
    return 400


def _where(submission: Submission, error: Exception) -> str:
    """Return a pointer to the invalid member. If there are args and kwargs, either may be the one that does not fit."""
    if isinstance(error, DuplicateKey):
        return "/idempotency_key"
    if submission.args and submission.kwargs:
        return ""
    return "/kwargs" if submission.kwargs else "/args"

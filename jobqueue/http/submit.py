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
from jobqueue.http.answers import MAX_PROBLEMS, Problem, Refused, answer, endpoint, url_of
from jobqueue.http.bodies import ENVELOPE_BYTES, pointer, read_json
from jobqueue.http.callers import Caller, caller_of
from jobqueue.http.submission import read
from jobqueue.records import Enqueued

logger = logging.getLogger(__name__)

MOST_IN_BATCH = 1000


@endpoint("POST")
def submit(request: HttpRequest) -> HttpResponse:
    """Enqueue one task: 201, or 200 where its idempotency key was seen."""
    caller = caller_of(request, "submit_task")
    limit = max(options_for(alias).max_payload_bytes for alias in caller.backends)
    value = read_json(request, max_bytes=limit + ENVELOPE_BYTES)
    (enqueued,) = _submit(caller, [value], [""])
    shown = _shown(request, enqueued)
    if not enqueued.created:
        return answer(shown)
    return answer(shown, 201, {"Location": shown["url"]})


@endpoint("POST")
def submit_batch(request: HttpRequest) -> HttpResponse:
    """Enqueue a list of tasks, all or none: 201, or 200 where all idempotency keys were seen."""
    caller = caller_of(request, "submit_task")
    values = read_json(request)
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_IN_BATCH:
        raise Refused(400, f"The body must be a JSON array of 1 to {MOST_IN_BATCH:,} submissions.")
    answers = _submit(caller, values, [pointer(place) for place in range(len(values))])
    status = 201 if any(enqueued.created for enqueued in answers) else 200
    return answer([_shown(request, enqueued) | {"created": enqueued.created} for enqueued in answers], status)


def _shown(request: HttpRequest, enqueued: Enqueued) -> dict[str, Any]:
    return {"id": str(enqueued.id), "status": str(enqueued.status), "url": url_of(request, enqueued.id)}


def _submit(caller: Caller, values: Sequence[Any], places: Sequence[str]) -> list[Enqueued]:
    """Enqueue what these values ask for; `places` says where each stands in the body. Raises Refused."""
    submissions: list[Submission] = []
    forbidden: list[Problem] = []
    wrong: list[Problem] = []
    for value, place in zip(values, places, strict=True):
        reading = read(value, caller)
        forbidden += [Problem(one.what, place + one.where) for one in reading.forbidden]
        wrong += [Problem(one.what, place + one.where) for one in reading.problems]
        if reading.submission is not None:
            submissions.append(reading.submission)
        if len(forbidden) > MAX_PROBLEMS or len(wrong) > MAX_PROBLEMS:
            break
    for status, found in ((403, forbidden), (400, wrong)):
        if found:
            raise Refused(status, *found)
    backend = _backend_of(submissions, places)
    try:
        answers = backend.submit(submissions)
    except InvalidSubmissions as error:
        problems = (
            Problem(str(refused), places[number] + _where(submissions[number], refused))
            for number, refused in error.errors.items()
        )
        raise Refused(_status(error), *problems) from None
    created = sum(enqueued.created for enqueued in answers)
    logger.info("submitted by=%s created=%d seen=%d", caller, created, len(answers) - created)
    return answers


def _backend_of(submissions: Sequence[Submission], places: Sequence[str]) -> JobQueueBackend:
    first = submissions[0].task.backend
    others = [
        Problem(f"is of backend {wanted.task.backend!r}, the first is of {first!r}: one batch, one backend", place)
        for wanted, place in zip(submissions, (f"{place}/task" for place in places), strict=True)
        if wanted.task.backend != first
    ]
    if others:
        raise Refused(400, *others)
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
    """Say which member is wrong; of arguments that do not fit it may be either, where both are given."""
    if isinstance(error, DuplicateKey):
        return "/idempotency_key"
    if submission.args and submission.kwargs:
        return ""
    return "/kwargs" if submission.kwargs else "/args"

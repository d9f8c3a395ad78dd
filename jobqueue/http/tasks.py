"""GET tasks/<id>/, and POST cancel/, requeue/ and messages/ below it."""

from __future__ import annotations

import logging
from typing import Any

from django.apps import apps
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from msgspec import UNSET

from jobqueue import api
from jobqueue.conf.options import options_for
from jobqueue.declarations import registry
from jobqueue.declarations.actor import PolledTask
from jobqueue.engine import engine_for
from jobqueue.exceptions import InvalidArguments, PayloadTooLarge, TaskFinished, TaskNotFound
from jobqueue.http.auth import Caller
from jobqueue.http.endpoint import endpoint
from jobqueue.http.request_body import ENVELOPE_BYTES, read_body, read_request
from jobqueue.http.request_headers import IDEMPOTENCY_KEY, check_if_match, idempotency_key, with_etag
from jobqueue.http.responses import HttpError, respond, service_unavailable, task_url
from jobqueue.http.schemas import Cancel, Cancelled, MessageRequest, Problem, Sent, TaskDetail, TaskError, TaskReference
from jobqueue.models import Task
from jobqueue.operations.formatting import attempt_number
from jobqueue.operations.payloads import find_secrets, parse_column, shown_errors
from jobqueue.operations.task.detail import find_task
from jobqueue.operations.task.inbox import check_message
from jobqueue.values.redaction import redact, redact_texts
from jobqueue.values.states import FINAL, Status

logger = logging.getLogger(__name__)

# Columns that a response shows under their names.
SHOWN = ("priority", "max_attempts", "enqueued_at", "wake_at", "started_at", "finished_at")


@endpoint(
    "GET",
    {200: ("The task.", TaskDetail), 304: ("It is as the caller's If-None-Match says.", None)},
    (404, 412),
    permission="view_task",
    headers=("If-None-Match",),
)
def show(request: HttpRequest, caller: Caller, task_id: str) -> HttpResponse:
    """Show a task: its state, its result and its errors, redacted."""
    return with_etag(request, _shown(request, caller, _find(caller, task_id)))


def _shown(request: HttpRequest, caller: Caller, row: Task) -> HttpResponse:
    patterns = options_for(row.backend).redact
    args, kwargs, errors = (parse_column(getattr(row, f"{name}_text")) for name in ("args", "kwargs", "errors"))
    secrets = find_secrets(row.task_type, args, kwargs, patterns)
    with_payload = caller.may("view_payload")
    detail = TaskDetail(
        id=row.pk,
        status=Status(row.status),
        url=task_url(request, row.pk),
        task=row.task_type,
        queue=row.queue_name,
        attempt=attempt_number(row),
        **{name: getattr(row, name) for name in SHOWN},
        errors=[
            # Without its traceback, in which not every secret can be masked.
            TaskError(
                attempt=entry.get("attempt"),
                at=entry.get("at"),
                exception=str(entry.get("exception_class_path") or ""),
                message=entry["message"] if with_payload else UNSET,
            )
            for entry in shown_errors(errors, patterns, secrets, with_payload=with_payload)
        ],
        result=redact_texts(redact(_result(row), patterns), secrets) if with_payload else UNSET,
    )
    return respond(detail)


@endpoint(
    "POST",
    {200: ("Ended.", Cancelled), 202: ("It runs, and was asked to stop.", Cancelled)},
    (404, 409, 412),
    permission="cancel_task",
    body=Cancel,
    needs_body=False,
    headers=("If-Match",),
)
def cancel(request: HttpRequest, caller: Caller, task_id: str) -> HttpResponse:
    """Cancel a task."""
    has_body = bool(read_body(request, max_bytes=ENVELOPE_BYTES))
    tree = has_body and read_request(request, Cancel, max_bytes=ENVELOPE_BYTES).tree
    row = _find_to_change(request, caller, task_id)
    report = api.cancel(row.pk, tree=tree, backend=row.backend, may=caller.may_cancel_descendant)
    if row.pk in report.busy:
        raise service_unavailable("Another transaction has locked the task.")
    now, not_allowed = _status_of(row), len(report.not_allowed)
    logger.info(
        "request.accepted action=cancel by=%s id=%s status=%s not_allowed=%d", caller.name, row.pk, now, not_allowed
    )
    if not report.cancelled and not report.requested:
        raise HttpError(409, f"The task has ended: {now}.")
    _write_history(request, caller, row, _("Cancel"))
    # The number of descendants, not their ids: a caller that may not cancel them may not see them.
    body = Cancelled(row.pk, now, task_url(request, row.pk), not_allowed=not_allowed)
    return respond(body, 200 if now in FINAL else 202)


@endpoint(
    "POST", {200: ("Requeued.", TaskReference)}, (404, 409, 412), permission="requeue_task", headers=("If-Match",)
)
def requeue(request: HttpRequest, caller: Caller, task_id: str) -> HttpResponse:
    """Put a FAILED or CANCELLED task back in its queue."""
    row = _find_to_change(request, caller, task_id)
    report = api.requeue(row.pk, backend=row.backend)
    if report.busy:
        raise service_unavailable("Another transaction has locked the task.")
    if report.key_taken:
        raise HttpError(409, "A live task holds the key of this one.")
    now = _status_of(row)
    if not report.requeued:
        raise HttpError(409, f"Only FAILED and CANCELLED tasks are requeued; this one is {now}.")
    logger.info("request.accepted action=requeue by=%s id=%s", caller.name, row.pk)
    _write_history(request, caller, row, _("Requeue"))
    return respond(TaskReference(row.pk, now, task_url(request, row.pk)))


@endpoint(
    "POST",
    {201: ("Sent.", Sent), 200: ("A repeat, which was not sent.", Sent)},
    (404, 409, 412),
    permission="send_message",
    body=MessageRequest,
    headers=(IDEMPOTENCY_KEY, "If-Match"),
)
def messages(request: HttpRequest, caller: Caller, task_id: str) -> HttpResponse:
    """Send a message to an actor."""
    row = _find_to_change(request, caller, task_id)
    limit = options_for(row.backend).max_payload_bytes
    message = read_request(request, MessageRequest, max_bytes=limit + ENVELOPE_BYTES)
    dedupe_key = idempotency_key(request, message.dedupe_key, "dedupe_key")
    if not isinstance(registry.get(row.task_type), PolledTask | None):
        raise HttpError(409, "The task runs a function. Only actors read messages.")
    try:
        check_message(row.task_type, message.body, limit)
        sent = api.send(row.pk, message.body, dedupe_key=dedupe_key, backend=row.backend)
    except InvalidArguments as error:
        raise HttpError(413 if isinstance(error, PayloadTooLarge) else 400, Problem(str(error), "/body")) from None
    except TaskFinished as error:
        raise HttpError(409, str(error)) from None
    except TaskNotFound:
        raise _not_found() from None
    logger.info("request.accepted action=send by=%s id=%s message=%s", caller.name, row.pk, sent)
    return respond(Sent(sent), 200 if sent is None else 201)


def _find(caller: Caller, task_id: str) -> Task:
    """Return a task that the caller may use. Raises HttpError: 404, 403."""
    row = find_task(task_id, dict.fromkeys(options_for(alias).database for alias in caller.backends))
    if row is None or row.backend not in caller.backends:
        raise _not_found()
    if not caller.may_see(row):
        raise HttpError(403, "The token does not allow this task.")
    return row


def _find_to_change(request: HttpRequest, caller: Caller, task_id: str) -> Task:
    """Find the task. Raises HttpError 412 if the caller's If-Match is of another state of the task."""
    row = _find(caller, task_id)
    if "If-Match" in request.headers:
        check_if_match(request, _shown(request, caller, row))
    return row


def _not_found() -> HttpError:
    return HttpError(404, "There is no such task.")


def _result(row: Task) -> Any:
    """Return the result. If Python cannot read it, return None, so that the request does not fail."""
    try:
        return row.return_value
    except (ValueError, RecursionError):
        return None


def _status_of(row: Task) -> Status:
    status = engine_for(row.backend).db.tasks.filter(pk=row.pk).values_list("status", flat=True).first()
    return Status.CANCELLED if status is None else Status(status)  # a retention of 0 deletes at once


def _write_history(request: HttpRequest, caller: Caller, row: Task, what: str) -> None:
    """Write the action of a logged-in user into the task's history in the admin, if the admin is installed."""
    if caller.token is None and apps.is_installed("django.contrib.admin"):
        from jobqueue.operations.bulk import audit_log

        audit_log.write(request, [row], what)

"""GET tasks/<id>/, and POST cancel/, requeue/ and messages/ below it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db.models import TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from msgspec import UNSET

from jobqueue import api, registry
from jobqueue.actor import ActorTask
from jobqueue.conf import options_for
from jobqueue.engine import engine_for
from jobqueue.exceptions import InvalidArguments, PayloadTooLarge, TaskFinished, TaskNotFound
from jobqueue.http.auth import Caller, UserCaller, authenticate
from jobqueue.http.request_body import ENVELOPE_BYTES, read_body, read_request
from jobqueue.http.responses import HttpError, endpoint, respond, service_unavailable, task_url
from jobqueue.http.schemas import Cancel, Cancelled, Message, Problem, Sent, TaskDetail, TaskError, TaskLink
from jobqueue.models import Task
from jobqueue.records import FINAL, Status
from jobqueue.serialization.json import check_dedupe_key, decode, encode_message
from jobqueue.serialization.redaction import Secrets, argument_secrets, redact, redact_text, redact_texts

logger = logging.getLogger(__name__)

JSON_COLUMNS = ("args", "kwargs", "errors", "return_value")


@endpoint("GET", "HEAD")
def show(request: HttpRequest, task_id: str) -> HttpResponse:
    """Return the state of a task, its result and its errors, redacted."""
    caller = authenticate(request, "view_task")
    row = _find(caller, task_id)
    return respond(_detail(request, row, with_result=caller.may("view_payload")))


@endpoint("POST")
def cancel(request: HttpRequest, task_id: str) -> HttpResponse:
    """Cancel a task: 200 if it ended at once, 202 if it runs and was asked to stop."""
    caller = authenticate(request, "cancel_task")
    has_body = bool(read_body(request, max_bytes=ENVELOPE_BYTES))
    tree = has_body and read_request(request, Cancel, max_bytes=ENVELOPE_BYTES).tree
    row = _find(caller, task_id)
    report = api.cancel(row.pk, tree=tree, backend=row.backend, may=caller.may_cancel_descendant)
    if row.pk in report.busy:
        raise service_unavailable("Another transaction has locked the task.")
    now = _status_of(row)
    logger.info(
        "request.accepted action=cancel by=%s id=%s status=%s not_allowed=%d",
        caller,
        row.pk,
        now,
        len(report.not_allowed),
    )
    if not report.cancelled and not report.requested:
        raise HttpError(409, f"The task has ended: {now}.")
    _write_history(request, caller, row, _("Cancel"))
    # The number of descendants, not their ids: a caller that may not cancel them may not see them.
    return respond(
        Cancelled(row.pk, now, task_url(request, row.pk), not_allowed=len(report.not_allowed)),
        200 if now in FINAL else 202,
    )


@endpoint("POST")
def requeue(request: HttpRequest, task_id: str) -> HttpResponse:
    """Put a FAILED or CANCELLED task back in its queue."""
    caller = authenticate(request, "requeue_task")
    row = _find(caller, task_id)
    report = api.requeue(row.pk, backend=row.backend)
    if report.busy:
        raise service_unavailable("Another transaction has locked the task.")
    if report.key_taken:
        raise HttpError(409, "A live task holds the key of this one.")
    now = _status_of(row)
    if not report.requeued:
        raise HttpError(409, f"Only FAILED and CANCELLED tasks are requeued; this one is {now}.")
    logger.info("request.accepted action=requeue by=%s id=%s", caller, row.pk)
    _write_history(request, caller, row, _("Requeue"))
    return respond(TaskLink(row.pk, now, task_url(request, row.pk)))


@endpoint("POST")
def messages(request: HttpRequest, task_id: str) -> HttpResponse:
    """Send a message to an actor: 201, or 200 for a repeat."""
    caller = authenticate(request, "send_message")
    row = _find(caller, task_id)
    limit = options_for(row.backend).max_payload_bytes
    message = read_request(request, Message, max_bytes=limit + ENVELOPE_BYTES)
    try:
        check_dedupe_key(message.dedupe_key)
    except InvalidArguments as error:
        raise HttpError(400, Problem(str(error), "/dedupe_key")) from None
    try:
        _check_message(row, message.body, limit)
        sent = api.send(row.pk, message.body, dedupe_key=message.dedupe_key, backend=row.backend)
    except PayloadTooLarge as error:
        raise HttpError(413, Problem(str(error), "/body")) from None
    except InvalidArguments as error:
        raise HttpError(400, Problem(str(error), "/body")) from None
    except TaskFinished as error:
        raise HttpError(409, str(error)) from None
    except TaskNotFound:
        raise _not_found() from None
    logger.info("request.accepted action=send by=%s id=%s message=%s", caller, row.pk, sent)
    return respond(Sent(sent), 200 if sent is None else 201)


def _write_history(request: HttpRequest, caller: Caller, row: Task, what: str) -> None:
    """Write the action of a logged-in user into the task's history in the admin, if the admin is installed."""
    if isinstance(caller, UserCaller) and apps.is_installed("django.contrib.admin"):
        from jobqueue.inspect import audit_log

        audit_log.write(request, [row], what)


def _find(caller: Caller, task_id: str) -> Task:
    """Return a task that the caller may use. Raises HttpError: 404, 403."""
    try:
        pk = UUID(task_id)
    except ValueError:
        raise _not_found() from None
    texts = {f"{name}_text": Cast(name, TextField()) for name in JSON_COLUMNS}
    for alias in caller.backends:
        heavy = (*JSON_COLUMNS, "inner_state", "options", "metadata", "worker_ids")
        row = engine_for(alias).tasks.filter(pk=pk).annotate(**texts).defer(*heavy).first()
        if row is not None:
            if not caller.may_see(row):
                raise HttpError(403, "The token does not allow this task.")
            return row
    raise _not_found()


def _not_found() -> HttpError:
    return HttpError(404, "There is no such task.")


def _status_of(row: Task) -> Status:
    status = engine_for(row.backend).tasks.filter(pk=row.pk).values_list("status", flat=True).first()
    return Status.CANCELLED if status is None else Status(status)  # a retention of 0 deletes at once


def _check_message(row: Task, body: Any, limit: int) -> None:
    """Reject a body that the actor's `Message` does not allow, because it would fail the actor's polls."""
    task = registry.get(row.task_type)
    if task is None:
        return
    if not isinstance(task, ActorTask):
        raise HttpError(409, "The task runs a function. Only actors read messages.")
    text = encode_message(body, max_bytes=limit)
    try:
        task.actor.decode_body(text)
    except ValueError as error:
        raise InvalidArguments(f"{task.actor.__name__}.Message does not allow that: {error}") from error


def _detail(request: HttpRequest, row: Task, *, with_result: bool) -> TaskDetail:
    patterns = options_for(row.backend).redact
    secrets = _secrets(row, patterns)
    errors = redact(_read(row, "errors"), ())  # limits their nesting
    return TaskDetail(
        id=row.pk,
        status=Status(row.status),
        url=task_url(request, row.pk),
        task=row.task_type,
        queue=row.queue_name,
        priority=row.priority,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        enqueued_at=row.enqueued_at,
        wake_at=row.wake_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        errors=[_error(entry, patterns, secrets) for entry in errors if isinstance(entry, dict)]
        if isinstance(errors, list)
        else [],
        result=redact_texts(redact(_read(row, "return_value"), patterns), secrets) if with_result else UNSET,
    )


def _read(row: Task, name: str) -> Any:
    """Return the value of a JSON column, or None if Python cannot read it: the request must not fail for it."""
    text: str | None = getattr(row, f"{name}_text")
    try:
        return None if text is None else decode(text)
    except ValueError:
        return None


def _secrets(row: Task, patterns: tuple[str, ...]) -> Secrets:
    """Return the masked arguments, to mask them in errors and results that repeat them."""
    args, kwargs = _read(row, "args"), _read(row, "kwargs")
    return argument_secrets(registry.parameters(row.task_type), args, kwargs, patterns)


def _error(entry: Mapping[str, Any], patterns: tuple[str, ...], secrets: Secrets) -> TaskError:
    """Return one failed attempt without its traceback, in which not every secret can be masked."""
    return TaskError(
        attempt=entry.get("attempt"),
        at=entry.get("at"),
        exception=str(entry.get("exception_class_path") or ""),
        message=redact_text(str(entry.get("message") or ""), patterns, secrets),
    )

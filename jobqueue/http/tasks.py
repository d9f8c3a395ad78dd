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

from jobqueue import api, registry
from jobqueue.actor import ActorTask
from jobqueue.conf import options_for
from jobqueue.engine import engine_for
from jobqueue.exceptions import InvalidArguments, PayloadTooLarge, TaskFinished, TaskNotFound
from jobqueue.http.answers import Problem, Refused, answer, away, endpoint, url_of
from jobqueue.http.bodies import ENVELOPE_BYTES, read_body, read_object
from jobqueue.http.callers import Caller, Person, caller_of
from jobqueue.models import Task
from jobqueue.records import Status
from jobqueue.redact import Secrets, argument_secrets, redact, redact_text, redact_texts
from jobqueue.serialization.json import check_dedupe_key, decode, encode_message

logger = logging.getLogger(__name__)

JSON_COLUMNS = ("args", "kwargs", "errors", "return_value")


@endpoint("GET", "HEAD")
def show(request: HttpRequest, task_id: str) -> HttpResponse:
    """Tell where a task stands, its result and its errors; redacted."""
    caller = caller_of(request, "view_task")
    row = _reach(caller, task_id)
    return answer(_shown(request, row, with_result=caller.may("view_payload")))


@endpoint("POST")
def cancel(request: HttpRequest, task_id: str) -> HttpResponse:
    """Cancel a task: 200 where it ended at once, 202 where it runs and was told to stop."""
    caller = caller_of(request, "cancel_task")
    tree = _flag(request, "tree")
    row = _reach(caller, task_id)
    report = api.cancel(row.pk, tree=tree, backend=row.backend, may=caller.may_take_along)
    if row.pk in report.busy:
        raise away("Another transaction has locked the task.")
    now = _status_of(row)
    logger.info("cancel by=%s id=%s status=%s left=%d", caller, row.pk, now, len(report.left))
    if not report.cancelled and not report.requested:
        raise Refused(409, f"The task has ended: {now}.")
    _write_history(request, caller, row, _("Cancel"))
    is_told = now not in (Status.CANCELLED, Status.FAILED, Status.SUCCESSFUL)
    # How many, not which: who may not touch them may not see them.
    return answer({**_brief(request, row, now), "left": len(report.left)}, 202 if is_told else 200)


@endpoint("POST")
def requeue(request: HttpRequest, task_id: str) -> HttpResponse:
    """Put a FAILED or CANCELLED task back in its queue."""
    caller = caller_of(request, "requeue_task")
    row = _reach(caller, task_id)
    report = api.requeue(row.pk, backend=row.backend)
    if report.busy:
        raise away("Another transaction has locked the task.")
    if report.key_taken:
        raise Refused(409, "A live task holds the key of this one.")
    now = _status_of(row)
    if not report.requeued:
        raise Refused(409, f"Only FAILED and CANCELLED tasks are requeued; this one is {now}.")
    logger.info("requeue by=%s id=%s", caller, row.pk)
    _write_history(request, caller, row, _("Requeue"))
    return answer(_brief(request, row, now))


@endpoint("POST")
def messages(request: HttpRequest, task_id: str) -> HttpResponse:
    """Send a message to an actor: 201, or 200 where its dedupe_key was seen."""
    caller = caller_of(request, "send_message")
    row = _reach(caller, task_id)
    limit = options_for(row.backend).max_payload_bytes
    given = read_object(request, {"body", "dedupe_key"}, max_bytes=limit + ENVELOPE_BYTES)
    if "body" not in given:
        raise Refused(400, Problem("is missing; a message that says nothing is null", "/body"))
    try:
        dedupe_key = check_dedupe_key(given.get("dedupe_key"))
    except InvalidArguments as error:
        raise Refused(400, Problem(str(error), "/dedupe_key")) from None
    try:
        _check_message(row, given["body"], limit)
        sent = api.send(row.pk, given["body"], dedupe_key=dedupe_key, backend=row.backend)
    except PayloadTooLarge as error:
        raise Refused(413, Problem(str(error), "/body")) from None
    except InvalidArguments as error:
        raise Refused(400, Problem(str(error), "/body")) from None
    except TaskFinished as error:
        raise Refused(409, str(error)) from None
    except TaskNotFound:
        raise _not_found() from None
    logger.info("message by=%s to=%s id=%s", caller, row.pk, sent)
    return answer({"id": sent}, 200 if sent is None else 201)


def _write_history(request: HttpRequest, caller: Caller, row: Task, what: str) -> None:
    """Write who did it into the task's history in the admin, where somebody is logged in and there is an admin."""
    if isinstance(caller, Person) and apps.is_installed("django.contrib.admin"):
        from jobqueue.admin import history

        history.write(request, [row], what)


def _reach(caller: Caller, task_id: str) -> Task:
    """Find a task that the caller may reach. Raises Refused: 404, 403."""
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
                raise Refused(403, "The token does not allow this task.")
            return row
    raise _not_found()


def _not_found() -> Refused:
    return Refused(404, "There is no such task.")


def _status_of(row: Task) -> str:
    statuses = engine_for(row.backend).tasks.filter(pk=row.pk).values_list("status", flat=True)
    found: str | None = statuses.first()
    if found is None:  # retention of 0 deletes at once
        return str(Status.CANCELLED)
    return found


def _flag(request: HttpRequest, name: str) -> bool:
    """Read a flag from the body, which may be missing."""
    if not read_body(request, max_bytes=ENVELOPE_BYTES):
        return False
    value = read_object(request, {name}, max_bytes=ENVELOPE_BYTES).get(name, False)
    if not isinstance(value, bool):
        raise Refused(400, Problem("must be true or false", f"/{name}"))
    return value


def _check_message(row: Task, body: Any, limit: int) -> None:
    """Refuse what the actor's `Message` does not allow: it would fail its polls."""
    task = registry.get(row.task_type)
    if task is None:
        return
    if not isinstance(task, ActorTask):
        raise Refused(409, "The task runs a function, which reads no messages: actors do.")
    text = encode_message(body, max_bytes=limit)
    try:
        task.actor.decode_body(text)
    except ValueError as error:
        raise InvalidArguments(f"{task.actor.__name__}.Message does not allow that: {error}") from error


def _brief(request: HttpRequest, row: Task, status: str) -> dict[str, str]:
    return {"id": str(row.pk), "status": status, "url": url_of(request, row.pk)}


def _shown(request: HttpRequest, row: Task, *, with_result: bool) -> dict[str, Any]:
    patterns = options_for(row.backend).redact
    secrets = _secrets(row, patterns)
    errors = redact(_read(row, "errors"), ())  # limits their nesting
    shown: dict[str, Any] = {
        **_brief(request, row, row.status),
        "task": row.task_type,
        "queue": row.queue_name,
        "priority": row.priority,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "enqueued_at": row.enqueued_at,
        "wake_at": row.wake_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "errors": [_error(entry, patterns, secrets) for entry in errors if isinstance(entry, dict)]
        if isinstance(errors, list)
        else [],
    }
    if with_result:
        shown["result"] = redact_texts(redact(_read(row, "return_value"), patterns), secrets)
    return shown


def _read(row: Task, name: str) -> Any:
    """Read a JSON column as far as Python can: one value that it cannot must not fail the request."""
    text: str | None = getattr(row, f"{name}_text")
    try:
        return None if text is None else decode(text)
    except ValueError:
        return None


def _secrets(row: Task, patterns: tuple[str, ...]) -> Secrets:
    """Give the arguments that are masked, to mask them where an error or a result repeats them."""
    args, kwargs = _read(row, "args"), _read(row, "kwargs")
    return argument_secrets(registry.parameters(row.task_type), args, kwargs, patterns)


def _error(entry: Mapping[str, Any], patterns: tuple[str, ...], secrets: Secrets) -> dict[str, Any]:
    """Show one failed attempt; its traceback, which holds more than can be masked, is for the admin."""
    return {
        "attempt": entry.get("attempt"),
        "at": entry.get("at"),
        "exception": str(entry.get("exception_class_path") or ""),
        "message": redact_text(str(entry.get("message") or ""), patterns, secrets),
    }

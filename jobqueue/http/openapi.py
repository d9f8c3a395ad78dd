"""GET openapi.json: the other views as an OpenAPI 3.1 document. schemas.py has the types of requests and responses."""

from __future__ import annotations

from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from jobqueue.http import schemas
from jobqueue.http.responses import endpoint, respond
from jobqueue.http.schemas import MAX_BATCH, Health, NotReady, TaskLink

Json = dict[str, Any]

Batch = list[schemas.Submission]
BatchItems = list[schemas.BatchItem]
Problems = list[schemas.Problem]
ERRORS = {
    400: "The body is not valid.",
    401: "Authentication required.",
    403: "Not allowed, or the session has no CSRF token.",
    404: "There is no such task.",
    405: "The method is not allowed.",
    409: "The task's state does not allow this, or the idempotency key was used for another request.",
    411: "Content-Length required.",
    413: "The body is too large.",
    415: "The body is not JSON in UTF-8.",
    501: "An extra is not installed. The response names it.",
    503: "The database is unavailable, or another transaction has locked the task. Retry.",
}
ALWAYS = (401, 403, 405, 503)
BODY = (400, 411, 413, 415)
TYPES: list[Any] = [
    schemas.Submission, schemas.Message, schemas.Cancel, TaskLink, schemas.Cancelled, schemas.TaskDetail, schemas.Sent,
    schemas.Metrics, Health, NotReady, Batch, BatchItems, Problems,
]  # fmt: skip
SCHEMAS, COMPONENTS = msgspec.json.schema_components(TYPES, ref_template="#/components/schemas/{name}")
RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
TASK_ID = {"name": "task_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}


def _content(kind: Any) -> Json:
    if kind is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = SCHEMAS[TYPES.index(kind)]
    if kind is Batch:
        schema = {**schema, "minItems": 1, "maxItems": MAX_BATCH}
    return {"application/json": {"schema": schema}}


def _operation(
    name: str,
    summary: str,
    responses: dict[int, tuple[str, Any]],
    *errors: int,
    body: Any = None,
    needs_body: bool = True,
    is_public: bool = False,
) -> Json:
    """
    Describe one method of a path.

    responses: description and type by status. errors: other statuses, whose responses list problems. body: its type.
    """
    everything = responses | {status: (ERRORS[status], Problems) for status in sorted(errors)}
    operation: Json = {
        "operationId": name,
        "summary": summary,
        "responses": {
            str(status): {
                "description": description,
                "content": _content(kind),
                **({"headers": RETRY_AFTER} if status == 503 else {}),
            }
            for status, (description, kind) in everything.items()
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": needs_body, "content": _content(body)}
    return operation | ({"security": []} if is_public else {})


def _ready(name: str) -> Json:
    responses = {200: ("They do.", Health), 503: ("They do not.", NotReady)}
    return _operation(name, "Whether executors serve all queues in time", responses, 405, is_public=True)


def _of_task(method: str, operation: Json) -> Json:
    return {"parameters": [TASK_ID], method: operation}


PATHS: Json = {
    "/submit/": {
        "post": _operation(
            "submit", "Enqueue a task",
            {201: ("Enqueued.", TaskLink), 200: ("The idempotency key exists.", TaskLink)},
            *ALWAYS, *BODY, 409, body=schemas.Submission,
        ),
    },
    "/submit/batch/": {
        "post": _operation(
            "submitBatch", f"Enqueue up to {MAX_BATCH:,} tasks, all or none",
            {201: ("Enqueued.", BatchItems), 200: ("All idempotency keys exist.", BatchItems)},
            *ALWAYS, *BODY, 409, body=Batch,
        ),
    },
    "/tasks/{task_id}/": _of_task(
        "get", _operation("show", "Show a task", {200: ("The task.", schemas.TaskDetail)}, *ALWAYS, 404)
    ),
    "/tasks/{task_id}/cancel/": _of_task(
        "post",
        _operation(
            "cancel", "Cancel a task",
            {200: ("Ended.", schemas.Cancelled), 202: ("It runs, and was asked to stop.", schemas.Cancelled)},
            *ALWAYS, *BODY, 404, 409, body=schemas.Cancel, needs_body=False,
        ),
    ),
    "/tasks/{task_id}/requeue/": _of_task(
        "post",
        _operation(
            "requeue", "Put a FAILED or CANCELLED task back in its queue",
            {200: ("Requeued.", TaskLink)}, *ALWAYS, 404, 409,
        ),
    ),
    "/tasks/{task_id}/messages/": _of_task(
        "post",
        _operation(
            "send", "Send a message to an actor",
            {201: ("Sent.", schemas.Sent), 200: ("A repeat, which was not sent.", schemas.Sent)},
            *ALWAYS, *BODY, 404, 409, body=schemas.Message,
        ),
    ),
    "/metrics/": {
        "get": _operation("metrics", "Metrics in the text format of Prometheus", {200: ("Metrics.", str)}, *ALWAYS, 501)
    },
    "/metrics.json": {
        "get": _operation("metricsAsJson", "Metrics as JSON", {200: ("Metrics.", schemas.Metrics)}, *ALWAYS)
    },
    "/health/": {"get": _ready("health")},
    "/health/ready": {"get": _ready("ready")},
    "/health/live": {
        "get": _operation("live", "Whether the process answers", {200: ("It does.", Health)}, 405, is_public=True)
    },
}  # fmt: skip


@endpoint("GET", "HEAD")
def document(request: HttpRequest) -> HttpResponse:
    """Return the document. Its server is the path under which the site included these views."""
    session = {
        "type": "apiKey",
        "in": "cookie",
        "name": settings.SESSION_COOKIE_NAME,
        "description": "With Django's CSRF token in the header X-CSRFToken.",
    }
    return respond(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "jobqueue",
                "version": "1",
                "description": "Submit tasks to the queue of a Django site, and follow them.",
            },
            "servers": [{"url": request.path.removesuffix("/openapi.json")}],
            "security": [{"token": []}, {"session": []}],
            "paths": PATHS,
            "components": {
                "schemas": COMPONENTS,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "session": session},
            },
        }
    )

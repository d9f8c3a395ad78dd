"""GET openapi.json: what the other views take and give, as an OpenAPI 3.1 document."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from jobqueue.http.answers import answer, endpoint
from jobqueue.http.submission import MOST_IDEMPOTENCY_CHARACTERS
from jobqueue.http.submit import MOST_IN_BATCH
from jobqueue.records import LIVE, Status
from jobqueue.tally import COUNTERS, EDGES
from jobqueue.task_options import LONGEST

Json = dict[str, Any]

RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
TASK_ID = {
    "name": "task_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "format": "uuid"},
}
REFUSALS = {
    400: "The body is not what it should be.",
    401: "Nobody that is known.",
    403: "Not allowed, or no CSRF token beside the session's cookie.",
    404: "No such task.",
    405: "The wrong method.",
    409: "The task's state does not allow it, or the idempotency key was used for another request.",
    411: "The server wants to know the length of the body before.",
    413: "Too large.",
    415: "No JSON in UTF-8.",
    501: "An extra is not installed; the answer names it.",
    503: "The database is away, or somebody has locked the task. Try again.",
}
ALWAYS = (401, 403, 405, 503)
BODY = (400, 411, 413, 415)


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _nullable(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _answers(good: dict[int, tuple[str, str | Json]], *refusals: int) -> Json:
    """Give the responses of an operation; `good` are descriptions and schemas by status."""
    answers: Json = {
        str(status): {
            "description": description,
            "content": _json(_ref(schema) if isinstance(schema, str) else schema),
        }
        for status, (description, schema) in good.items()
    }
    for status in sorted(refusals):
        answers[str(status)] = {"description": REFUSALS[status], "content": _json(_ref("Problems"))}
        if status == 503:
            answers[str(status)]["headers"] = RETRY_AFTER
    return answers


def _operation(name: str, summary: str, answers: Json, body: Json | None = None, *, needs_body: bool = True) -> Json:
    operation: Json = {"operationId": name, "summary": summary, "responses": answers}
    if body is not None:
        operation["requestBody"] = {"required": needs_body, "content": _json(body)}
    return operation


def _object(properties: Json, *, optional: tuple[str, ...] = (), **more: Any) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


STATUS = {"type": "string", "enum": [str(status) for status in Status]}
MOMENT = {"type": "string", "format": "date-time"}
KEY = {"type": "string", "minLength": 1, "maxLength": MOST_IDEMPOTENCY_CHARACTERS}
BRIEF: Json = {"id": {"type": "string", "format": "uuid"}, "status": STATUS, "url": {"type": "string"}}
NAME = {"type": "string"}
WHOLE = {"type": "integer", "minimum": 0}
SOME = {"type": "number", "minimum": 0}
SECONDS = LONGEST.total_seconds()

SCHEMAS: Json = {
    "Problems": {
        "type": "array",
        "minItems": 1,
        "description": "What is wrong, and where in the body: a JSON pointer, empty for all of it.",
        "items": _object({"what": {"type": "string"}, "where": {"type": "string"}}),
    },
    "Submission": _object(
        {
            "task": {"type": "string", "description": "The name of a task declared with allow_http=True."},
            "args": {"type": ["array", "null"]},
            "kwargs": {"type": ["object", "null"]},
            "queue": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": 128,
                "description": "Must not contain control characters.",
            },
            "priority": {"type": ["integer", "null"], "minimum": -100, "maximum": 100},
            "run_after": {
                "description": "Not before this moment, or this many seconds from now.",
                "oneOf": [
                    MOMENT,
                    {"type": "number", "minimum": -SECONDS, "maximum": SECONDS},
                    {"type": "null"},
                ],
            },
            "max_attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
            "idempotency_key": {
                **_nullable(KEY),
                "description": "Belongs to the token or the user. The same request with the same key returns the same "
                "task, until retention deletes it. Another request with the same key is refused with 409.",
            },
        },
        optional=("args", "kwargs", "queue", "priority", "run_after", "max_attempts", "idempotency_key"),
    ),
    "Batch": {"type": "array", "minItems": 1, "maxItems": MOST_IN_BATCH, "items": _ref("Submission")},
    "Submitted": _object(BRIEF),
    "SubmittedBatch": {
        "type": "array",
        "items": _object({**BRIEF, "created": {"type": "boolean"}}),
    },
    "Task": _object(
        {
            **BRIEF,
            "task": {"type": "string"},
            "queue": {"type": "string"},
            "priority": {"type": "integer"},
            "attempts": {"type": "integer", "description": "Failed tries of the current run."},
            "max_attempts": {"type": "integer"},
            "enqueued_at": MOMENT,
            "wake_at": _nullable(MOMENT),
            "started_at": _nullable(MOMENT),
            "finished_at": _nullable(MOMENT),
            "errors": {"type": "array", "items": _ref("Error")},
            "result": {"description": "Redacted; left out for people without the permission view_payload."},
        },
        optional=("result",),
    ),
    "Error": _object(
        {
            "attempt": {"type": ["integer", "null"]},
            "at": {"type": ["string", "null"]},
            "exception": {"type": "string"},
            "message": {"type": "string", "description": "Redacted."},
        }
    ),
    "Message": _object({"body": {}, "dedupe_key": _nullable(KEY)}, optional=("dedupe_key",)),
    "Sent": _object({"id": {"type": ["integer", "null"], "description": "null for a repeat."}}),
    "Cancel": _object(
        {"tree": {"type": "boolean", "description": "Cancel its living descendants too."}}, optional=("tree",)
    ),
    "Cancelled": _object(
        {**BRIEF, "left": {**WHOLE, "description": "Living descendants that the token does not allow, and that go on."}}
    ),
    "Histogram": _object(
        {
            "count": WHOLE,
            "seconds": {**SOME, "description": "All of them together."},
            "at_most": {
                "type": "object",
                "description": "How many were no longer than so many seconds.",
                "properties": {str(edge): WHOLE for edge in EDGES},
                "required": [str(edge) for edge in EDGES],
                "additionalProperties": False,
            },
        }
    ),
    "Metrics": _object(
        {
            "queues": {
                "type": "array",
                "items": _object(
                    {
                        "backend": NAME,
                        "queue": NAME,
                        **{status.lower(): WHOLE for status in LIVE},
                        "estimated": {
                            "type": "array",
                            "description": "Of these, which are estimates.",
                            "items": {"enum": [status.lower() for status in LIVE]},
                        },
                        "oldest_ready_seconds": {"type": "number"},
                    }
                ),
            },
            "tasks": {
                "type": "array",
                "description": "What has happened, ever since.",
                "items": _object(
                    {
                        "backend": NAME,
                        "queue": NAME,
                        "task_type": NAME,
                        **dict.fromkeys(COUNTERS, WHOLE),
                        "wait": _ref("Histogram"),
                        "run": _ref("Histogram"),
                    }
                ),
            },
            "backends": {
                "type": "array",
                "items": _object(
                    {
                        "backend": NAME,
                        **dict.fromkeys(("inflight", "active_workers", "slots", "executors"), WHOLE),
                        "oldest_snapshot_seconds": {"type": "number"},
                    }
                ),
            },
        }
    ),
    "Health": _object({"status": {"const": "ok"}}),
    "Failing": _object(
        {
            "status": {"const": "failing"},
            "problems": {
                "type": "array",
                "description": "Tokens see those of their queues, users with view_task see all. Others see none.",
                "items": _object({"what": {"type": "string"}, "where": {"type": "string"}}),
            },
        }
    ),
}

SUBMIT = _operation(
    "submit",
    "Enqueue a task",
    _answers(
        {201: ("Enqueued.", "Submitted"), 200: ("The idempotency key was seen.", "Submitted")}, *ALWAYS, *BODY, 409
    ),
    _ref("Submission"),
)
SUBMIT_BATCH = _operation(
    "submitBatch",
    f"Enqueue up to {MOST_IN_BATCH:,} tasks, all or none",
    _answers(
        {201: ("Enqueued.", "SubmittedBatch"), 200: ("All idempotency keys were seen.", "SubmittedBatch")},
        *ALWAYS, *BODY, 409,
    ),
    _ref("Batch"),
)  # fmt: skip
SHOW = _operation("show", "Where a task stands", _answers({200: ("The task.", "Task")}, *ALWAYS, 404))
CANCEL = _operation(
    "cancel",
    "Cancel a task",
    _answers(
        {200: ("Ended.", "Cancelled"), 202: ("It runs, and is told to stop.", "Cancelled")}, *ALWAYS, *BODY, 404, 409
    ),
    _ref("Cancel"),
    needs_body=False,
)
REQUEUE = _operation(
    "requeue",
    "Put a FAILED or CANCELLED task back in its queue",
    _answers({200: ("Requeued.", "Submitted")}, *ALWAYS, 404, 409),
)
MESSAGES = _operation(
    "send",
    "Send a message to an actor",
    _answers({201: ("Sent.", "Sent"), 200: ("Its dedupe_key was seen.", "Sent")}, *ALWAYS, *BODY, 404, 409),
    _ref("Message"),
)
METRICS_JSON = _operation(
    "metricsAsJson", "What the whole fleet has done, and how it stands", _answers({200: ("So.", "Metrics")}, *ALWAYS)
)
METRICS = _operation(
    "metrics", "The same in the text format of Prometheus", _answers({200: ("So.", "Metrics")}, *ALWAYS, 501)
)
METRICS["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
ALIVE = _operation("live", "Whether the process answers", _answers({200: ("It does.", "Health")}, 405))


def _ready(name: str) -> Json:
    answers = _answers({200: ("They drain.", "Health"), 503: ("They do not.", "Failing")}, 405)
    answers["503"]["headers"] = RETRY_AFTER
    return _operation(name, "Whether the queues drain", answers) | {"security": []}


PATHS: Json = {
    "/submit/": {"post": SUBMIT},
    "/submit/batch/": {"post": SUBMIT_BATCH},
    "/tasks/{task_id}/": {"parameters": [TASK_ID], "get": SHOW},
    "/tasks/{task_id}/cancel/": {"parameters": [TASK_ID], "post": CANCEL},
    "/tasks/{task_id}/requeue/": {"parameters": [TASK_ID], "post": REQUEUE},
    "/tasks/{task_id}/messages/": {"parameters": [TASK_ID], "post": MESSAGES},
    "/metrics/": {"get": METRICS},
    "/metrics.json": {"get": METRICS_JSON},
    "/health/": {"get": _ready("health")},
    "/health/ready": {"get": _ready("ready")},
    "/health/live": {"get": ALIVE | {"security": []}},
}


@endpoint("GET", "HEAD")
def document(request: HttpRequest) -> HttpResponse:
    """Give the document, whose server is wherever the site has put these views."""
    return answer(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "jobqueue",
                "version": "1",
                "description": "Submit tasks to the queue of a Django site, and see what became of them.",
            },
            "servers": [{"url": request.path.removesuffix("/openapi.json")}],
            "security": [{"token": []}, {"session": []}],
            "paths": PATHS,
            "components": {
                "schemas": SCHEMAS,
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "session": {
                        "type": "apiKey",
                        "in": "cookie",
                        "name": settings.SESSION_COOKIE_NAME,
                        "description": "With Django's CSRF token in the header X-CSRFToken.",
                    },
                },
            },
        }
    )

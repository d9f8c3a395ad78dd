"""GET openapi.json: an OpenAPI 3.1 document, made from the arguments of endpoint() and the types in schemas.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import get_resolver

from jobqueue.http.endpoint import endpoint
from jobqueue.http.responses import respond
from jobqueue.http.schemas import Problem

Json = dict[str, Any]

ERRORS = {
    400: "The body is not valid.",
    401: "Authentication required.",
    403: "Not allowed, or the session has no CSRF token.",
    404: "There is no such task.",
    405: "The method is not allowed.",
    409: "The task's state does not allow this, or the idempotency key was used for another request.",
    411: "Content-Length required.",
    412: "The task has changed since the caller read it: its ETag is not the one of If-Match.",
    413: "The body is too large.",
    415: "The body is not JSON in UTF-8, or it is compressed.",
    501: "An extra is not installed. The response names it.",
    503: "The database is unavailable, or another transaction has locked the task. Retry.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
HEADERS = {
    "Idempotency-Key": "In place of the idempotency_key of a submission, or of the dedupe_key of a message.",
    "If-Match": "The ETag of the task as the caller has read it.",
    "If-None-Match": "An ETag that the caller has. If the task has not changed, the answer is 304.",
}
TASK_ID = {"name": "task_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}


@endpoint("GET", {200: ("This document.", Json)})
def document(request: HttpRequest) -> HttpResponse:
    """Describe these requests as an OpenAPI document."""
    paths, schemas = describe_views()
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
            # The path under which the site included the views.
            "servers": [{"url": request.path.removesuffix("/openapi.json")}],
            "security": [{"token": []}, {"session": []}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "session": session},
            },
        }
    )


@cache
def describe_views() -> tuple[Json, Json]:
    """Return the paths of all views, and the schemas of their types by name."""
    patterns = get_resolver("jobqueue.urls").url_patterns
    endpoints: list[endpoint] = [pattern.callback.endpoint for pattern in patterns]  # type: ignore[union-attr]
    kinds = {
        str(kind): kind for view in endpoints for kind in (view.body, *(kind for _, kind in view.answers.values()))
    }
    kinds = {name: kind for name, kind in kinds.items() if kind} | {str(list[Problem]): list[Problem]}
    documents, components = msgspec.json.schema_components(kinds.values(), ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, documents, strict=True))
    paths: Json = {}
    for pattern, view in zip(patterns, endpoints, strict=True):
        path = "/" + str(pattern.pattern).replace("<str:", "{").replace(">", "}")
        paths[path] = {view.method.lower(): _operation(pattern, view, schemas)}
        if "{task_id}" in path:
            paths[path]["parameters"] = [TASK_ID]
    return paths, components


def _operation(pattern: Any, view: endpoint, schemas: Mapping[str, Json]) -> Json:
    def content(kind: Any) -> Json:
        if kind is None:
            return {}
        return {"text/plain" if kind is str else "application/json": {"schema": schemas[str(kind)]}}

    errors = {status: (ERRORS[status], list[Problem]) for status in view.all_errors}
    operation: Json = {
        "operationId": pattern.name,
        "summary": pattern.callback.__doc__.partition("\n")[0],
        "responses": {
            str(status): {
                "description": description,
                "content": content(kind),
                **({"headers": RETRY_AFTER} if status == 503 else {}),
            }
            for status, (description, kind) in {**view.answers, **errors}.items()
        },
    }
    if view.headers:
        operation["parameters"] = [
            {"name": name, "in": "header", "description": HEADERS[name], "schema": {"type": "string"}}
            for name in view.headers
        ]
    if view.body:
        operation["requestBody"] = {"required": view.needs_body, "content": content(view.body)}
    return operation if view.permission else {**operation, "security": []}

"""Read the JSON body of a request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.http.request import UnreadablePostError

from jobqueue.http.responses import HttpError
from jobqueue.http.schemas import Problem, Request
from jobqueue.values.json import decode
from jobqueue.values.text import cut

RequestType = TypeVar("RequestType", bound=Request)

TOO_SHORT = "The body ended before its Content-Length."
ENVELOPE_BYTES = 16_384  # of a submission without its arguments
PLACE = re.compile(r" - at `\$\.(\w+)[^`]*`$")
FIELD = re.compile(r"field `(.*)`$", re.DOTALL)


def read_json(request: HttpRequest, *, max_bytes: int | None = None) -> Any:
    """Return the value of the body. Raises HttpError: 415, or as read_body()."""
    if request.content_type != "application/json":
        raise HttpError(415, "The body must be JSON, with Content-Type: application/json.")
    if (coding := request.headers.get("Content-Encoding", "identity").lower()) != "identity":
        raise HttpError(415, f"The body must not be compressed, but its Content-Encoding is {cut(coding, 40)!r}.")
    if (request.encoding or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise HttpError(415, "The body must be JSON in UTF-8.")
    try:
        return decode(read_body(request, max_bytes=max_bytes).decode())
    except ValueError as error:
        raise HttpError(400, f"The body is not JSON in UTF-8: {error}") from None


def read_request(request: HttpRequest, kind: type[RequestType], *, max_bytes: int) -> RequestType:
    """Return the body as a request type. Raises HttpError as read_json()."""
    value = read_json(request, max_bytes=max_bytes)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise HttpError(400, parse_problem(error)) from None


def parse_problem(error: msgspec.ValidationError) -> Problem:
    """Turn an error of msgspec into a problem with a JSON pointer to the member."""
    text = str(error)
    match = PLACE.search(text) or FIELD.search(text)
    return Problem(PLACE.sub("", text), "/" + match[1].replace("~", "~0").replace("/", "~1") if match else "")


def read_body(request: HttpRequest, *, max_bytes: int | None = None) -> bytes:
    """
    Return the body, b"" if there is none. Raises HttpError: 411, 413 or 400.

    max_bytes: a limit beside DATA_UPLOAD_MAX_MEMORY_SIZE, which Django applies only to bodies with a Content-Length.
    Under WSGI, Django reads nothing of a chunked body.
    """
    length = request.META.get("CONTENT_LENGTH") or ""
    limits = [limit for limit in (max_bytes, settings.DATA_UPLOAD_MAX_MEMORY_SIZE) if limit is not None]
    if length:
        if not length.isdecimal():
            raise HttpError(400, "Content-Length must be a number.")
        _check_size(int(length), limits)
    elif isinstance(request, WSGIRequest) and "Transfer-Encoding" in request.headers:
        raise HttpError(411, "The body must come with its Content-Length, not in chunks.")
    try:
        body = request.body
    except UnreadablePostError:
        raise HttpError(400, TOO_SHORT) from None
    if length and len(body) < int(length):  # servers pass on what arrived before the caller disconnected
        raise HttpError(400, TOO_SHORT)
    _check_size(len(body), limits)
    return body


def _check_size(length: int, limits: Iterable[int]) -> None:
    for limit in limits:
        if length > limit:
            raise HttpError(413, f"The body has {length:,} bytes; at most {limit:,} are read.")

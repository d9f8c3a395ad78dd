"""Read the JSON body of a request."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.http.request import UnreadablePostError

from jobqueue.http.answers import MAX_PROBLEMS, Problem, Refused
from jobqueue.serialization.json import decode

TOO_SHORT = "The body ended before its Content-Length."
ENVELOPE_BYTES = 16_384  # of a submission beside its arguments


def read_json(request: HttpRequest, *, max_bytes: int | None = None) -> Any:
    """Give the body's value. Raises Refused: 415, or as read_body()."""
    if request.content_type != "application/json":
        raise Refused(415, "The body must be JSON, with Content-Type: application/json.")
    if (request.encoding or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise Refused(415, "The body must be JSON in UTF-8.")
    try:
        text = read_body(request, max_bytes=max_bytes).decode()
    except UnicodeDecodeError as error:
        raise Refused(400, f"The body is not UTF-8: {error}") from None
    try:
        return decode(text)
    except ValueError as error:
        raise Refused(400, f"The body is not JSON that can be read: {error}") from None


def read_body(request: HttpRequest, *, max_bytes: int | None = None) -> bytes:
    """
    Give the body, b"" where there is none. Raises Refused: 411, 413 or 400.

    max_bytes: beside the site's DATA_UPLOAD_MAX_MEMORY_SIZE, which Django keeps to only where the length is said
    before. Under WSGI it reads nothing of a body that comes in chunks.
    """
    length = request.META.get("CONTENT_LENGTH") or ""
    limits = [limit for limit in (max_bytes, settings.DATA_UPLOAD_MAX_MEMORY_SIZE) if limit is not None]
    if length:
        _refuse_larger(_number(length), limits)
    elif isinstance(request, WSGIRequest) and "Transfer-Encoding" in request.headers:
        raise Refused(411, "The body must come with its Content-Length, not in chunks.")
    try:
        body = request.body
    except UnreadablePostError:
        raise Refused(400, TOO_SHORT) from None
    if length and len(body) < _number(length):  # servers pass on what arrived before the caller disconnected
        raise Refused(400, TOO_SHORT)
    _refuse_larger(len(body), limits)
    return body


def _number(length: str) -> int:
    if not length.isdecimal():
        raise Refused(400, "Content-Length must be a number.")
    return int(length)


def _refuse_larger(length: int, limits: Iterable[int]) -> None:
    for limit in limits:
        if length > limit:
            raise Refused(413, f"The body has {length:,} bytes; at most {limit:,} are read.")


def read_object(request: HttpRequest, known: set[str], *, max_bytes: int | None = None) -> dict[str, Any]:
    """Give the body's object, which has no other members than these. Raises Refused as read_json()."""
    value = read_json(request, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise Refused(400, "The body must be a JSON object.")
    if problems := unknown_members(value, known):
        raise Refused(400, *problems)
    return value


def unknown_members(value: dict[str, Any], known: set[str]) -> list[Problem]:
    """Return the first unknown members, one more than an answer lists."""
    unknown = islice((name for name in value if name not in known), MAX_PROBLEMS + 1)
    return [Problem(f"unknown; known are {', '.join(sorted(known))}", pointer(name)) for name in unknown]


def pointer(*parts: str | int) -> str:
    """Write a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)

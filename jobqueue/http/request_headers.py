"""The headers that clients of HTTP interfaces send by convention: Idempotency-Key, If-Match, If-None-Match."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response

from jobqueue.http.responses import HttpError
from jobqueue.http.schemas import Key

IDEMPOTENCY_KEY = "Idempotency-Key"


def idempotency_key(request: HttpRequest, member: str | None, name: str) -> str | None:
    """
    Return the key of a request, from the header or from the member `name` of its body; None without one.

    The header may be quoted, as the draft of the IETF wants it, or not, as most clients send it. Raises HttpError: 400
    for a key that the member could not be either, or if header and member differ.
    """
    header = request.headers.get(IDEMPOTENCY_KEY)
    if header is None:
        return member
    text = header.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    try:
        key = msgspec.convert(text, Key)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"The header {IDEMPOTENCY_KEY} cannot be used: {error}.") from None
    if member not in (None, key):
        raise HttpError(400, f"The header {IDEMPOTENCY_KEY} and the member {name} differ. Send one of them.")
    return key


def refuse_idempotency_key(request: HttpRequest) -> None:
    """Refuse the header for a request with many submissions. Raises HttpError: 400."""
    if IDEMPOTENCY_KEY in request.headers:
        raise HttpError(
            400, f"A batch takes no header {IDEMPOTENCY_KEY}. Give each submission an idempotency_key of its own."
        )


def with_etag(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return a response with an ETag of its content; 304 if the caller has it. Raises HttpError: 412."""
    response["ETag"] = etag_of(response)
    return _conditional(request, response) or response


def check_if_match(request: HttpRequest, current: HttpResponse) -> None:
    """
    Refuse to change what the caller has read in another state. Raises HttpError: 412.

    current: the response that shows the state now. Another request may still change it in between.
    """
    current["ETag"] = etag_of(current)
    _conditional(request, current)


def etag_of(response: HttpResponse) -> str:
    return f'"{blake2b(response.content, digest_size=16).hexdigest()}"'


def _conditional(request: HttpRequest, response: HttpResponse) -> HttpResponse | None:
    answer = get_conditional_response(request, etag=response["ETag"], response=response)
    if answer is not None and answer.status_code == 412:
        raise HttpError(412, "The task has changed since you read it. Read it again.")
    unchanged: HttpResponse | None = answer
    return unchanged

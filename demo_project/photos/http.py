"""A small HTTP client with the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

# Requests to this machine must not go to a proxy of the environment.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Refused(Exception):
    """The server answered with an error status."""

    def __init__(self, url: str, status: int, reason: str, retry_after: str | None = None) -> None:
        super().__init__(f"{urlsplit(url).path} answered {status} {reason}".rstrip())
        self.status = status
        self.retry_after = float(retry_after) if retry_after and retry_after.isdigit() else None


def post(url: str, payload: Mapping[str, Any], *, timeout: float = 10) -> int:
    """
    Send JSON and return the status.

    timeout: seconds. Raises Refused for a status of 400 or above, OSError if there is no answer.
    """
    body, headers = json.dumps(payload).encode(), {"Content-Type": "application/json"}
    try:
        with DIRECT.open(urllib.request.Request(url, body, headers), timeout=timeout) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(url, error.code, error.reason, error.headers.get("Retry-After")) from None

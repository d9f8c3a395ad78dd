"""Two small HTTP clients with the standard library: for threads and for an event loop. No HTTPS."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
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


async def apost(url: str, payload: Mapping[str, Any], *, timeout: float = 10) -> int:
    """Send JSON as post() does, on the event loop."""
    parts, body = urlsplit(url), json.dumps(payload).encode()
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            version, _, answer = (await reader.readline()).decode("latin-1").strip().partition(" ")
            if not version.startswith("HTTP/") or not answer[:3].isdigit():
                raise ConnectionError(f"{url} hung up before it answered")
            await reader.read()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    if int(answer[:3]) >= 400:
        raise Refused(url, int(answer[:3]), answer[4:])
    return int(answer[:3])

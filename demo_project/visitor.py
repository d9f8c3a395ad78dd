"""A visitor of the site that acts like a browser: cookies, CSRF token, multipart forms."""

from __future__ import annotations

import html
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from http.cookiejar import CookieJar
from pathlib import Path

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
COMPLAINT = re.compile(r'role="alert">([^<]+)<')
BATCH_FILES = 6
BATCH_BYTES = 48_000_000


class Turned(Exception):
    """The site rejected a request."""


class Visitor:
    """A client that keeps its cookies between requests."""

    def __init__(self, site_url: str) -> None:
        self.site_url = site_url
        no_proxy, cookies = urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        self._browser = urllib.request.build_opener(no_proxy, cookies)

    def upload(self, paths: Sequence[Path]) -> str:
        """Upload files with the form of the front page. Return the path of the new album. Raises Turned."""
        return self._post("/", [field("photos", path.read_bytes(), path.name) for path in paths])

    def press(self, what: str) -> None:
        """Press a button beside the form."""
        self._post("/experiments/", [field("what", what)], form_at="/")

    def decide(self, album: str, what: str) -> None:
        """Press a button on the page of an album."""
        self._post(f"{album}decide/", [field("what", what)], form_at=album)

    def grow(self, n: int) -> str:
        """Start a tree of actors. Return the path of its page."""
        return self._post("/fibonacci/", [field("n", str(n)), field("pace", "quick")])

    def _token(self, path: str) -> str:
        with self._browser.open(f"{self.site_url}{path}", timeout=30) as page:
            found = TOKEN.search(page.read().decode())
        if found is None:
            raise Turned(f"{path}: the page has no form.")
        return found[1]

    def _post(self, path: str, fields: Sequence[bytes], *, form_at: str | None = None) -> str:
        """Send a form. Return the path after redirects. form_at: the page with the form. Raises Turned."""
        token = field("csrfmiddlewaretoken", self._token(form_at or path))
        boundary = secrets.token_hex(16).encode()
        body = b"".join(b"--%s\r\n%s\r\n" % (boundary, part) for part in [token, *fields]) + b"--%s--\r\n" % boundary
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary.decode()}"}
        request = urllib.request.Request(f"{self.site_url}{path}", body, headers)
        try:
            with self._browser.open(request, timeout=120) as page:
                return str(page.geturl()).removeprefix(self.site_url)
        except urllib.error.HTTPError as error:
            with error:
                complaint = COMPLAINT.search(error.read().decode(errors="replace"))
            reason = html.unescape(complaint[1]) if complaint else f"{error.code} {error.reason}"
            raise Turned(f"{path}: {reason}") from None


def field(name: str, value: str | bytes, filename: str | None = None) -> bytes:
    """Return one part of a form. Quotes in file names are escaped as browsers escape them."""
    head = f'Content-Disposition: form-data; name="{name}"'
    if filename is not None:
        quoted = filename.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head += f'; filename="{quoted}"\r\nContent-Type: application/octet-stream'
    return head.encode(errors="replace") + b"\r\n\r\n" + (value.encode() if isinstance(value, str) else value)


def batches(paths: Iterable[Path]) -> Iterable[list[Path]]:
    """Group files into uploads of at most BATCH_FILES files and BATCH_BYTES bytes."""
    batch: list[Path] = []
    size = 0
    for path in paths:
        bytes_more = path.stat().st_size
        if batch and (len(batch) == BATCH_FILES or size + bytes_more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += bytes_more
    if batch:
        yield batch

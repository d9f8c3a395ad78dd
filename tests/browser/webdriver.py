"""
The commands of WebDriver (https://www.w3.org/TR/webdriver2/) that the browser tests need.

They talk to Debian's Chromium and chromedriver over HTTP on the loopback. No further package is needed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from tests.waiting import DEADLINE_SECONDS

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's key of an element reference
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1000",
)  # fmt: skip

opener = build_opener(ProxyHandler({}))


class BrowserError(Exception):
    """The browser refused a command."""


class Browser:
    """One window. Elements are found by CSS selector. Addresses may omit the `base`."""

    base = ""

    def __init__(self, address: str, profile: Path) -> None:
        self._address = address
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]}
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options, "unhandledPromptBehavior": "ignore"}}
        answer = self._send("POST", "/session", {"capabilities": capabilities})
        self._session = f"/session/{answer['sessionId']}"

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = Request(self._address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with opener.open(request, timeout=60) as response:
                return json.load(response)["value"]
        except HTTPError as error:
            problem = json.load(error)["value"]
            raise BrowserError(f"{problem['error']}: {problem['message']}") from None

    def command(self, method: str, path: str, body: Any = None) -> Any:
        return self._send(method, self._session + path, body)

    def open(self, url: str) -> None:
        """Open a page. Return when it has loaded."""
        with self.next_page():
            self.command("POST", "/url", {"url": url if "://" in url else self.base + url})

    def follow(self, selector: str) -> None:
        """Click an element that leads to another page. Return when that page has loaded."""
        with self.next_page():
            self.click(selector)

    @contextmanager
    def next_page(self) -> Iterator[None]:
        """
        Return when the page that the block leads to has loaded.

        chromedriver may answer a click before the load begins, and may take the end of an earlier page's load for this
        one's.
        """
        self.run("window.isEarlierPage = true")
        yield
        self.wait_for(lambda: self.run("return !window.isEarlierPage && document.readyState === 'complete'"))

    def find(self, selector: str) -> str:
        element = self.command("POST", "/element", {"using": "css selector", "value": selector})
        return str(element[ELEMENT])

    def text(self, selector: str) -> str:
        return str(self.command("GET", f"/element/{self.find(selector)}/text"))

    def click(self, selector: str) -> None:
        """Click an element that changes its page. See `follow` for one that leads to another."""
        try:
            self.command("POST", f"/element/{self.find(selector)}/click")
        except BrowserError as error:  # the live page replaced the element before the click
            if "stale element" not in str(error):
                raise
            self.command("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        self.command("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def run(self, script: str, *args: Any) -> Any:
        """Run a function body in the page. `return` gives its result."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(args)})

    def has_dialog(self) -> bool:
        try:
            self.command("GET", "/alert/text")
        except BrowserError as error:
            if "no such alert" in str(error):
                return False
            raise
        return True

    def set_cookie(self, name: str, value: str) -> None:
        self.command("POST", "/cookie", {"cookie": {"name": name, "value": value}})

    def resize(self, width: int, height: int) -> None:
        self.command("POST", "/window/rect", {"width": width, "height": height})

    def emulate(self, width: int, theme: str = "light") -> None:
        """Emulate a screen: that of a phone if it is narrow."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        for name, params in (("setDeviceMetricsOverride", screen), ("setEmulatedMedia", media)):
            self.command("POST", "/goog/cdp/execute", {"cmd": f"Emulation.{name}", "params": params})

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """
        Repeat the query until its result is true. Errors count as not yet. Raises AssertionError after the deadline.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        last: object = None
        while time.monotonic() < deadline:
            try:
                last = condition()
            except BrowserError as error:
                last = error
            else:
                if last:
                    return last
            time.sleep(0.05)
        raise AssertionError(f"still not so after {DEADLINE_SECONDS:g} s: {last}")

    def quit(self) -> None:
        self.command("DELETE", "")


def missing() -> str | None:
    """Return the name of the missing program, if any."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found; on Debian: apt-get install chromium chromium-driver" if absent else None


@contextmanager
def chromedriver(log: Path) -> Iterator[str]:
    """Start chromedriver on a free loopback port. Yield its address."""
    with log.open("wb") as sink:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=sink, stderr=subprocess.STDOUT)
        try:
            yield _address(process, log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    marker = "started successfully on port "
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        output = log.read_text(errors="replace")
        if marker in output and "\n" in (rest := output.partition(marker)[2]):
            return f"http://127.0.0.1:{rest.splitlines()[0].rstrip('. ')}"
        time.sleep(0.05)
    raise AssertionError(f"chromedriver did not start: {log.read_text(errors='replace')[-500:]}")

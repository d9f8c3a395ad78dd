"""Long work in batches: how far it is, and Ctrl-C between two of them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

from jobqueue.cli.console import Console, is_terminal

LINE_SECONDS = 10.0  # between two lines where no terminal shows a bar
INTERRUPTED = 130  # exit code


class Progress:
    """
    Counts tasks, in a bar of tqdm's on a terminal (`pip install django-jobqueue[cli]`), else in a line now and then.

    is_stopped: Ctrl-C was pressed; the batch that runs ends first. A second one ends the command at once.
    """

    def __init__(self, console: Console, verb: str, total: int | None) -> None:
        self._console, self._verb, self._total = console, verb, total
        self._bar = _bar(console, verb, total)
        self._since = self._said_at = time.monotonic()
        self.done = 0
        self.is_stopped = False

    def add(self, count: int) -> None:
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
            return
        now = time.monotonic()
        if now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            self._console.say(self._line(now - self._since))

    def _line(self, seconds: float) -> str:
        of = f" of {self._total:,}" if self._total is not None else ""
        return f"{self.done:,}{of} {self._verb}, {self.done / seconds:,.0f}/s"

    def stop(self, signum: int, frame: FrameType | None) -> None:
        if self.is_stopped:
            raise KeyboardInterrupt
        self.is_stopped = True
        self._console.say("")
        self._console.say("Stopping after this batch. Press Ctrl-C again to stop at once.")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def raise_if_stopped(self) -> None:
        """To be called when what was done has been reported."""
        if self.is_stopped:
            raise CommandError("Stopped before the end; the same command goes on.", returncode=INTERRUPTED)


@contextmanager
def progress(console: Console, verb: str, total: int | None = None) -> Iterator[Progress]:
    """Count in a block that looks at `is_stopped` between batches. total: None where nobody knows."""
    work = Progress(console, verb, total)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, work.stop) if is_main else None
    try:
        yield work
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
        work.close()


def _bar(console: Console, verb: str, total: int | None) -> Any:
    if console.is_json or not (is_terminal(console.err) and is_terminal(sys.stderr)):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=verb, unit=" tasks", file=sys.stderr, dynamic_ncols=True)

"""Long work in batches: a progress bar, and Ctrl-C between two batches."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

from jobqueue.cli.console import Console, is_terminal
from jobqueue.inspect.queries import Count

INTERRUPTED = 130  # exit code


class Progress:
    """
    A bar of tqdm on a terminal (`pip install django-jobqueue[cli]`).

    After Ctrl-C the batch that runs is completed. A second Ctrl-C ends the command at once.
    """

    def __init__(self, console: Console, bar: Any) -> None:
        self._console, self._bar = console, bar
        self._is_interrupted = False

    def add(self, count: int) -> bool:
        """Count tasks. Return whether to stop here."""
        if self._bar is not None:
            self._bar.update(count)
        return self._is_interrupted

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        self._console.say("\nStopping after this batch. Press Ctrl-C again to stop at once.")

    def raise_if_stopped(self) -> None:
        """Raise CommandError after Ctrl-C. Call it when the result has been reported."""
        if self._is_interrupted:
            raise CommandError("Interrupted. Run the command again to continue.", returncode=INTERRUPTED)


@contextmanager
def progress(console: Console, participle: str, expected: Count) -> Iterator[Progress]:
    """Show the progress of a block, and handle Ctrl-C in it."""
    bar = _bar(console, participle, None if expected.is_more else expected.number)
    work = Progress(console, bar)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, work.interrupt) if is_main else None
    try:
        yield work
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
        if bar is not None:
            bar.close()


def _bar(console: Console, participle: str, total: int | None) -> Any:
    if console.is_json or not (is_terminal(console.err) and is_terminal(sys.stderr)):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=participle, unit=" tasks", file=sys.stderr, dynamic_ncols=True)

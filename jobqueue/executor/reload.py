"""--reload: hand back what runs before Django starts the program again with the new code."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from django.utils import autoreload

from jobqueue.executor.process import ExecutorProcess

HAND_BACK_SECONDS = 5.0


def run_and_hand_back(make: Callable[[], ExecutorProcess]) -> None:
    """
    Run an executor in the reloader's thread.

    Signals go to the main thread, which belongs to Django's reloader: its SIGTERM and Ctrl-C end the
    program through sys.exit, so that we hand back on the way out.
    """
    executor = make()
    ended = threading.Event()

    def hand_back(*_: Any, **__: Any) -> None:
        executor.abort()
        ended.wait(HAND_BACK_SECONDS)

    autoreload.file_changed.connect(hand_back, weak=False)
    threading._register_atexit(hand_back)  # type: ignore[attr-defined]
    try:
        code = executor.run(with_signals=False)
    finally:
        ended.set()
    os._exit(code)

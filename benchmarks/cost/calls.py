"""The calls of this package's functions, and those of other functions by this package's code."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jobqueue

PACKAGE = str(Path(jobqueue.__file__).parent) + os.sep


class Calls:
    """
    Counts calls in this thread, and in the threads that start between __enter__() and __exit__().

    What Django and psycopg call inside is not counted, because it differs from version to version. Lists, because a
    list can be appended to by several threads.
    """

    def __init__(self) -> None:
        self._python: list[CodeType] = []
        self._is_ours: dict[CodeType, bool] = {}
        self.of_c = 0

    def __enter__(self) -> Calls:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and self._owns(frame):
            self.of_c += 1
        elif event == "call" and (self._owns(frame) or (frame.f_back is not None and self._owns(frame.f_back))):
            self._python.append(frame.f_code)

    def _owns(self, frame: FrameType) -> bool:
        code = frame.f_code
        if (is_ours := self._is_ours.get(code)) is None:
            is_ours = self._is_ours[code] = code.co_filename.startswith(PACKAGE)
        return is_ours

    def by_function(self) -> dict[str, int]:
        """Return how often each Python function was called."""
        return {name_of(code): count for code, count in Counter(self._python).items()}


def name_of(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno} {code.co_name}"

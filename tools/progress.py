"""A progress display: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

LINE_SECONDS = 2.0
BAR_WIDTH = 30


class ProgressLine:
    """Shows progress. On a terminal, each line overwrites the one before."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.is_terminal = out.isatty()
        self.began = time.monotonic()
        self._next_line = 0.0

    def show(self, done: int, total: int, words: str) -> None:
        """Draw the bar, or write a line when LINE_SECONDS have passed since the last one."""
        now = time.monotonic()
        if not self.is_terminal and now < self._next_line:
            return
        self._next_line = now + LINE_SECONDS
        self._write(f"{self._bar(done, total)}{done}/{total} tasks  {words}  {now - self.began:.0f} s")

    def finish(self, words: str) -> None:
        self._write(f"{words}  {time.monotonic() - self.began:.1f} s")
        if self.is_terminal:
            self.out.write("\n")
        self.out.flush()

    def _bar(self, done: int, total: int) -> str:
        if not self.is_terminal:
            return ""
        full = round(BAR_WIDTH * done / total) if total else 0
        return "█" * full + "░" * (BAR_WIDTH - full) + " "

    def _write(self, line: str) -> None:
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self.out.write("\r" + line[:width].ljust(width))
        else:
            self.out.write(f"  {line}\n")
        self.out.flush()

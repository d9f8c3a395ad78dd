"""
The output of a command: results to stdout, messages to stderr, changes to the site's log.

Control characters are escaped. The log is the logger `jobqueue.cli`, without arguments of tasks and without messages.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO

from django.core.management.base import CommandError, OutputWrapper
from msgspec import to_builtins

from jobqueue.values.text import printable

EXIT_INTERRUPTED = 130
GAP = "  "  # between columns
MIN_WIDTH = 8  # of a shortened column
MAX_IDS = 20  # in one line of the log

logger = logging.getLogger("jobqueue.cli")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    title: str  # its heading
    is_right: bool = False  # its numbers are aligned at the right
    is_flexible: bool = False  # shortened in the middle if the line is too long


@dataclass(frozen=True, slots=True)
class Console:
    """The output of a command."""

    out: OutputWrapper  # for results
    err: OutputWrapper  # for errors and progress
    is_json: bool = False  # results are written as JSON, for programs

    def write(self, line: str = "") -> None:
        self.out.write(_writable(line, self.out))

    def say(self, line: str, ending: str = "\n") -> None:
        self.err.write(_writable(line, self.err), style_func=str, ending=ending)  # not in the red of errors

    def write_json(self, value: Any, *, indent: int | None = 2) -> None:
        # Escapes of JSON, which programs can read, in place of those of write().
        text = json.dumps(to_builtins(value, enc_hook=str), indent=indent)
        self.out.write(text.replace("\x7f", "\\u007f"))

    def report(self, fields: Any, text: str) -> None:
        """Write a result: fields as JSON, or text."""
        if self.is_json:
            self.write_json(fields)
        else:
            self.write(text)

    def table(self, columns: Sequence[TableColumn], rows: Sequence[Sequence[object]]) -> None:
        # Escape before table_lines() measures the widths.
        for line in table_lines(columns, [[printable(str(cell)) for cell in row] for row in rows], self.width):
            self.write(line)

    @property
    def width(self) -> int | None:
        """Characters in a line; None if stdout is not a terminal, so that `grep` finds whole names."""
        return shutil.get_terminal_size().columns if self.out.isatty() or "COLUMNS" in os.environ else None

    def confirm(self, question: str, *, is_confirmed: bool) -> None:
        """Ask for a confirmation. Raises CommandError if the answer is no, or stdin is not a terminal."""
        if is_confirmed:
            return
        if not _is_terminal(sys.stdin):
            raise CommandError(f"{question} Not a terminal: pass --yes, or --dry-run to preview.")
        self.say(f"{question} [y/N] ", ending="")
        self.err.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")

    def progress(self, batches: Iterable[int], participle: str, expected: int) -> bool:
        """
        Run batches, each of so many tasks, with a bar of tqdm on a terminal. Return whether Ctrl-C ended them.

        After Ctrl-C the batch that runs is completed. A second Ctrl-C raises KeyboardInterrupt.
        """
        bar = self._bar(participle, expected)
        is_interrupted = False

        def interrupt(signum: int, frame: FrameType | None) -> None:
            nonlocal is_interrupted
            if is_interrupted:
                raise KeyboardInterrupt
            is_interrupted = True
            self.say("")  # ends the line of the bar
            self.say("Stopping after this batch. Press Ctrl-C again to stop at once.")

        is_main = threading.current_thread() is threading.main_thread()  # only it may handle signals
        before = signal.signal(signal.SIGINT, interrupt) if is_main else None
        try:
            for count in batches:
                if bar is not None:
                    bar.update(count)
                if is_interrupted:
                    break
        finally:
            if is_main:
                signal.signal(signal.SIGINT, before)
            if bar is not None:
                bar.close()
        return is_interrupted

    def _bar(self, participle: str, total: int) -> Any:
        if self.is_json or not (_is_terminal(self.err) and _is_terminal(sys.stderr)):
            return None
        try:
            from tqdm import tqdm
        except ImportError:  # pip install django-jobqueue[cli]
            return None
        return tqdm(total=total, desc=participle, unit=" tasks", file=sys.stderr, dynamic_ncols=True)


def log(command: str, by: str | None = None, /, **values: object) -> None:
    """Log a change. by: the name given with --by."""
    user = f"shell user {shell_user()}" if by is None else f"{by!r} (shell user {shell_user()})"
    pairs = "".join(f" {name}={value!r}" for name, value in values.items() if value not in (None, ""))
    logger.info("command.executed command=%s by=%s%s", command, user, pairs)


def list_ids(ids: Sequence[object]) -> str:
    """List the first ids, and the number of the others."""
    more = f" and {len(ids) - MAX_IDS:,} more" if len(ids) > MAX_IDS else ""
    return ", ".join(map(str, ids[:MAX_IDS])) + more


def shell_user() -> str:
    """Return the system's user, or nothing if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def table_lines(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table, headings first. width None: as wide as necessary."""
    lines = [[column.title for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    # Shorten the widest flexible column until the line fits.
    while width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width:
        flexible = [i for i, column in enumerate(columns) if column.is_flexible and widths[i] > MIN_WIDTH]
        if not flexible:
            break
        widths[max(flexible, key=lambda i: widths[i])] -= 1
    for cells in lines:
        shortened = map(_shorten_middle, cells, widths)
        parts = zip(columns, shortened, widths, strict=True)
        yield GAP.join(f"{cell:{'>' if column.is_right else '<'}{size}}" for column, cell, size in parts).rstrip()


def _shorten_middle(text: str, size: int) -> str:
    """Replace the middle by an ellipsis: the ends of a dotted name are its telling parts."""
    if len(text) <= size:
        return text
    tail = (size - 1) * 2 // 3
    return f"{text[: size - 1 - tail]}…{text[len(text) - tail :]}"


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _writable(text: str, stream: OutputWrapper) -> str:
    """Escape control characters, and those that the encoding of a stream lacks: under cron it is often ASCII."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def _is_terminal(stream: TextIO | OutputWrapper | None) -> bool:
    return stream is not None and stream.isatty()

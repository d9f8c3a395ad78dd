"""Output of a command: results to stdout, messages to stderr, control characters escaped."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO
from uuid import UUID

from django.core.management.base import CommandError, OutputWrapper

from jobqueue.cli.tables import Column, table
from jobqueue.printable import printable


class UsageError(Exception):
    """Flags that do not fit together."""


@dataclass(frozen=True, slots=True)
class Console:
    """is_json: results are written as JSON, for programs."""

    out: OutputWrapper
    err: OutputWrapper
    is_json: bool = False

    def write(self, line: str = "") -> None:
        self.out.write(writable(printable(line), self.out))

    def say(self, line: str) -> None:
        self.err.write(writable(printable(line), self.err), style_func=str)  # not in the red of errors

    def write_json(self, value: Any, *, indent: int | None = 2) -> None:
        # Escapes of JSON, which programs can read, in place of those of write().
        self.out.write(json.dumps(value, indent=indent, default=_plain).replace("\x7f", "\\u007f"))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
        # Escape before table() measures the widths.
        cells = [[printable(str(cell)) for cell in row] for row in rows]
        for line in table(columns, cells, self.width):
            self.write(line)

    @property
    def width(self) -> int | None:
        """Characters in a line; None if stdout is not a terminal, so that `grep` finds whole names."""
        return shutil.get_terminal_size().columns if self.out.isatty() or "COLUMNS" in os.environ else None

    def report(self, fields: Any, text: str) -> None:
        """Write a result: fields as JSON, or text."""
        if self.is_json:
            self.write_json(fields)
        else:
            self.write(text)

    def confirm(self, question: str, *, is_confirmed: bool) -> None:
        """Ask for a confirmation. Raises CommandError if the answer is no, or stdin is not a terminal."""
        if is_confirmed:
            return
        if not is_terminal(sys.stdin):
            raise CommandError(f"{question} Not a terminal: pass --yes, or --dry-run to preview.")
        self.err.write(printable(f"{question} [y/N] "), style_func=str, ending="")
        self.err.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")


def writable(text: str, stream: OutputWrapper) -> str:
    """Escape characters that the encoding of a stream lacks: under cron it is often ASCII."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_terminal(stream: TextIO | OutputWrapper) -> bool:
    return bool(stream is not None and stream.isatty())


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")

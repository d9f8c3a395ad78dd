"""Where a command writes: data to stdout, talk to stderr, nothing that could steer a terminal."""

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


@dataclass(frozen=True, slots=True)
class Console:
    """is_json: data is written as JSON, for programs."""

    out: OutputWrapper
    err: OutputWrapper
    is_json: bool = False

    def write(self, line: str = "") -> None:
        self.out.write(writable(printable(line), self.out))

    def say(self, line: str) -> None:
        self.err.write(writable(printable(line), self.err), style_func=str)  # not in the red of errors

    def write_json(self, value: Any, *, indent: int | None = 2) -> None:
        # JSON's own escapes: those of write(), of DEL or of what an ASCII stdout lacks, no program reads.
        self.out.write(json.dumps(value, indent=indent, default=_plain).replace("\x7f", "\\u007f"))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
        # Escape before table() measures the widths.
        cells = [[printable(str(cell)) for cell in row] for row in rows]
        for line in table(columns, cells, self.width):
            self.write(line)

    @property
    def width(self) -> int | None:
        """Characters in a line; None where nobody looks, so that `grep` finds whole names."""
        return shutil.get_terminal_size().columns if self.out.isatty() or "COLUMNS" in os.environ else None

    def confirm(self, question: str, *, is_sure: bool) -> None:
        """Ask before something large. Raises CommandError where the answer is no, or nobody can be asked."""
        if is_sure:
            return
        if not is_terminal(sys.stdin):
            raise CommandError(f"{question} Say --yes where nobody can be asked, or look first with --dry-run.")
        self.err.write(printable(f"{question} [y/N] "), style_func=str, ending="")
        self.err.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was done.")


def writable(text: str, stream: OutputWrapper) -> str:
    """Write as escapes what the encoding of a stream lacks: cron's is often ASCII."""
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
    raise TypeError(f"{type(value).__name__} is not for JSON")

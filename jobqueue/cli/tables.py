"""Tables of plain text that fit the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobqueue.inspect.queries import Count

GAP = "  "
MIN_WIDTH = 8  # of a shortened column


@dataclass(frozen=True, slots=True)
class Column:
    """is_right: numbers. is_flexible: shortened in the middle if the line is too long."""

    title: str
    is_right: bool = False
    is_flexible: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a table, headings first. width None: as wide as necessary."""
    widths = [max(len(cell) for cell in cells) for cells in zip(*[[c.title for c in columns], *rows], strict=True)]
    if width is not None:
        widths = _fit(columns, widths, width)
    for cells in ([column.title for column in columns], *rows):
        parts = [
            shorten(cell, size).rjust(size) if column.is_right else shorten(cell, size).ljust(size)
            for column, cell, size in zip(columns, cells, widths, strict=True)
        ]
        yield GAP.join(parts).rstrip()


def _fit(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Shorten the widest flexible column until the line fits or all have MIN_WIDTH."""
    fitted = list(widths)
    while sum(fitted) + len(GAP) * (len(fitted) - 1) > width:
        flexible = [i for i, column in enumerate(columns) if column.is_flexible and fitted[i] > MIN_WIDTH]
        if not flexible:
            break
        fitted[max(flexible, key=lambda i: fitted[i])] -= 1
    return fitted


def shorten(text: str, size: int) -> str:
    """Replace the middle by an ellipsis: the ends of a dotted name are its telling parts."""
    if len(text) <= size:
        return text
    tail = (size - 1) * 2 // 3
    return f"{text[: size - 1 - tail]}…{text[len(text) - tail :]}"


def shorten_end(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def many(count: int | Count, noun: str) -> str:
    """Return a number with its noun: 1 executor, 2 executors, 10,000+ tasks."""
    shown = str(count) if isinstance(count, Count) else f"{count:,}"
    return f"{shown} {noun}{'' if shown == '1' else 's'}"

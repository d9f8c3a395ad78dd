"""Tables of plain text that fit the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GAP = "  "
LEAST = 8  # characters that a shortened column keeps


@dataclass(frozen=True, slots=True)
class Column:
    """is_right: numbers. gives: may be shortened where the line is too long, in its middle."""

    title: str
    is_right: bool = False
    gives: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Give the lines of a table, headings first; width None: as wide as need be."""
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
    """Take from the widest of those that give until the line fits or nobody has more to give."""
    fitted = list(widths)
    while sum(fitted) + len(GAP) * (len(fitted) - 1) > width:
        giving = [i for i, column in enumerate(columns) if column.gives and fitted[i] > LEAST]
        if not giving:
            break
        fitted[max(giving, key=lambda i: fitted[i])] -= 1
    return fitted


def shorten(text: str, size: int) -> str:
    """Cut the middle out: of a dotted name both ends tell most."""
    if len(text) <= size:
        return text
    tail = (size - 1) * 2 // 3
    return f"{text[: size - 1 - tail]}…{text[len(text) - tail :]}"


def shorten_end(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def many(count: int, noun: str) -> str:
    """Say how many: 1 executor, 2 executors."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

RIGHT = frozenset("0123456789")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. Columns of numbers are aligned right, the others left."""
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    numeric = [all(row[at][:1] in RIGHT or row[at] == "-" for row in rows) for at in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    yield line(heads)
    yield "  ".join("─" * width for width in widths)
    yield from map(line, rows)


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"

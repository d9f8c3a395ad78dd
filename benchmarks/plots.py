"""Plots as SVG text, for a few lines and bars, without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 220, 40, 50
COLOURS = ["#0b6e4f", "#c1292e", "#235789", "#f1a208", "#6b4e71", "#3d3d3d", "#8c6e54"]


def lines(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]], *, unit: str) -> str:
    """Draw a line for each name, with labels at equal distances. None leaves a gap."""
    highest = max((value for values in series.values() for value in values if value is not None), default=1) * 1.1
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels) - 1)
    parts = axes(title, unit, [(value, height(value, highest)) for value in ticks(highest)])
    parts += [
        text(LEFT + number * step, HEIGHT - BOTTOM + 20, label, anchor="middle") for number, label in enumerate(labels)
    ]
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(LEFT + at * step, height(value, highest)) for at, value in enumerate(values) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        parts += legend(number, name, colour)
    return document(parts)


def spans(title: str, series: Mapping[str, Sequence[float]], *, unit: str) -> str:
    """Draw a bar for each name from its first to its last value, with a mark at each, on a logarithmic scale."""
    values = [value for line in series.values() for value in line]
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    highest = max(highest, lowest + 1)
    row = (HEIGHT - TOP - BOTTOM) / max(1, len(series))

    def position(value: float) -> float:
        return LEFT + RIGHT / 2 + (math.log10(value) - lowest) / (highest - lowest) * (WIDTH - LEFT - RIGHT)

    parts = [text(WIDTH / 2, 22, title, anchor="middle", size=15)]
    for power in range(lowest, highest + 1):
        x = position(10**power)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 20, f"{10**power:g} {unit}", anchor="middle"))
    for number, (name, waits) in enumerate(series.items()):
        y, colour = TOP + row * (number + 0.5), COLOURS[number % len(COLOURS)]
        x1, x2 = position(waits[0]), position(waits[-1])
        parts.append(
            f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="3"/>'
        )
        parts += [f'<circle cx="{position(value):.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for value in waits]
        parts.append(text(LEFT + RIGHT / 2 - 12, y + 4, name, anchor="end"))
    return document(parts)


def axes(title: str, unit: str, marks: Sequence[tuple[float, float]]) -> list[str]:
    parts = [text(LEFT, 22, f"{title} ({unit})", size=15)]
    for value, y in marks:
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{value:,g}", anchor="end"))
    return parts


def legend(number: int, name: str, colour: str) -> list[str]:
    x, y = WIDTH - RIGHT + 20, TOP + 10 + 22 * number
    return [f'<rect x="{x}" y="{y - 9}" width="12" height="12" fill="{colour}"/>', text(x + 18, y + 2, name)]


def ticks(highest: float) -> list[float]:
    step = 10 ** math.floor(math.log10(highest))
    step = next(size for size in (step / 5, step / 2, step, step * 2) if highest / size <= 6)
    return [step * number for number in range(int(highest / step) + 1)]


def height(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - value / highest * (HEIGHT - TOP - BOTTOM)


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#222">{escape(words)}</text>'


def document(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts, "</svg>"]) + "\n"

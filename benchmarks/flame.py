"""
Draw where an executor's time in Python goes while it drains tasks with an empty body: python -m benchmarks.flame

py-spy reads the stack of the thread that holds the interpreter lock, again and again. So waiting is not
counted, and a C function counts for its caller. As another user than root, it may need the right to trace a child.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

import django

from benchmarks.cluster import prepared_cluster, version
from benchmarks.workers import CHECKOUT

PICTURE = CHECKOUT / "docs" / "drain-flame.svg"
THREADS = {
    "jobqueue-worker-0": "worker thread: runs the tasks",
    "loop": "loop: commits and claims",
    "jobqueue-callbacks": "callbacks thread: writes the log",
}
KINDS = {  # of functions: the part of a file's path, the colour on white and on black
    "jobqueue": (f"{CHECKOUT}/jobqueue/", "#a8c7e8", "#2b5580"),
    "Django": ("/django", "#a9d8b4", "#2c6642"),
    "psycopg": ("/psycopg", "#f0cb9b", "#80551f"),
    "Python": ("", "#d9d9de", "#4b4b55"),
}
STYLE = """
svg { font-family: sans-serif; font-size: 12px } text { fill: #1c1c1c } rect { stroke: #fff } .page { fill: #fff }
.head { font-size: 17px }"""
DARK = "text { fill: #eee } rect { stroke: #14161a } .page { fill: #14161a }"
LINE = re.compile(r'thread \(\w+\): "?([^;"]+)"?;(.+) (\d+)')
FRAME = re.compile(r"(.+) \((.+)\)")
WIDTH, ROW, TOP, CHARACTER = 1200.0, 20, 112, 6.6
RATE = 200  # samples a second: with 1,000, functions with system calls had a larger share
NARROWEST = 3.0  # of the boxes that are drawn


class Function(NamedTuple):
    name: str
    file: str

    @property
    def kind(self) -> str:
        return next(kind for kind, (part, *_) in KINDS.items() if part in self.file)


@dataclass(slots=True)
class Box:
    """A function as called along one path. samples: with what it called."""

    samples: int = 0
    called: dict[Function, Box] = field(default_factory=dict)

    def add(self, stack: Iterable[Function], samples: int) -> None:
        self.samples += samples
        box = self
        for function in stack:
            box = box.called.setdefault(function, Box())
            box.samples += samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="make flame ARGS=...", description=__doc__)
    parser.add_argument("--tasks", type=int, default=500_000)
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args()
    with prepared_cluster(), tempfile.TemporaryDirectory() as folder:
        from benchmarks.tasks import noop

        noop.enqueue_many(((number,), {}) for number in range(options.tasks))
        stacks = list(read(sampled(Path(folder))))
        programs = f"Python {platform.python_version()}, Django {django.get_version()}, PostgreSQL {version()}"
    options.output.write_text(draw(stacks, f"{options.tasks:,} tasks, --threads=1, the log on; {programs}"))


def sampled(folder: Path) -> str:
    """Run an executor until no task is left. Return its stacks, a line for each with the number of samples."""
    stacks = folder / "stacks"
    program = str(Path(sys.executable).with_name("py-spy"))
    profiler = [
        program,
        "record",
        f"--rate={RATE}",
        "--format=raw",
        "--threads",
        "--gil",
        "--function",
        "--full-filenames",
    ]
    command = [sys.executable, "manage.py", "run_executors", "--threads=1", "--burst"]
    with (folder / "log").open("w+") as log:
        done = subprocess.run([*profiler, f"--output={stacks}", "--", *command], cwd=CHECKOUT, stdout=log, stderr=log)
        if done.returncode:
            log.seek(0)
            sys.exit(f"py-spy failed:\n{log.read()[-2000:]}")
    return stacks.read_text()


def read(text: str) -> Iterator[tuple[str, list[Function], int]]:
    """Yield the name of a thread, a stack from its first function of this package on, and the number of samples."""
    for thread, line, samples in LINE.findall(text):
        stack = [Function(*match.groups()) for frame in line.split(";") if (match := FRAME.fullmatch(frame))]
        while stack and stack[0].kind != "jobqueue":
            del stack[0]
        if stack and thread != "MainThread":  # which starts the program, and waits
            yield thread, stack, int(samples)


def draw(stacks: list[tuple[str, list[Function], int]], conditions: str) -> str:
    threads: dict[str, Box] = {}
    own: Counter[str] = Counter()
    for thread, stack, samples in stacks:
        threads.setdefault(THREADS.get(thread, "other threads"), Box()).add(stack, samples)
        own[stack[-1].kind] += samples
    total = own.total()
    parts, x = [], 0.0
    for name, root in sorted(threads.items(), key=lambda item: -item[1].samples):
        parts.append(drawn_box(name, name, "", x, 0, root.samples / total))
        parts += called(root, x, 1, total)
        x += root.samples / total * WIDTH
    rows = max(int(y) for y in re.findall(r'rect x="\S+" y="(\d+)"', "".join(parts)))
    light, dark = ("".join(f".{kind} {{ fill: {value[at]} }} " for kind, value in KINDS.items()) for at in (1, 2))
    legend = [
        f'<rect class="{kind}" x="{20 + 150 * at}" y="80" width="14" height="14"/>'
        f'<text x="{40 + 150 * at}" y="92">{kind} {own[kind] / total:.0%}</text>'
        for at, kind in enumerate(KINDS)
    ]
    head = "Where an executor's time in Python goes while it drains tasks with an empty body"
    explanation = (
        "A box is a function; the boxes below are what it called; the width is its share. Waiting is left out. "
        "The colours' shares are without what they called."
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {rows + ROW + 8}">',
            f"<style>{STYLE} {light}@media (prefers-color-scheme: dark) {{ {DARK} {dark}}}</style>",
            '<rect class="page" width="100%" height="100%"/>',
            f'<text class="head" x="20" y="26">{head}</text><text x="20" y="46">{escape(conditions)}</text>',
            f'<text x="20" y="66">{explanation}</text>',
            *legend,
            *parts,
            "</svg>\n",
        ]
    )


def called(box: Box, x: float, depth: int, total: int) -> Iterator[str]:
    """Draw what a function called, the largest first."""
    for function, inner in sorted(box.called.items(), key=lambda item: -item[1].samples):
        share = inner.samples / total
        if share * WIDTH < NARROWEST:
            return
        where = re.sub(rf".*/site-packages/|.*/python[\d.]+/|{re.escape(str(CHECKOUT))}/", "", function.file)
        yield drawn_box(function.name, f"{function.name} in {where}", function.kind, x, depth, share)
        yield from called(inner, x, depth + 1, total)
        x += share * WIDTH


def drawn_box(name: str, title: str, kind: str, x: float, depth: int, share: float) -> str:
    y, width = TOP + ROW * depth, share * WIDTH
    room = int((width - 8) / CHARACTER)
    labels = (f"{name} {share:.0%}", name, name.rpartition(".")[2], name.rpartition(".")[2][: room - 1] + "…")
    label = next((label for label in labels if len(label) <= room), "")
    words = f'<text x="{x + 4:.1f}" y="{y + 14}">{escape(label)}</text>' if room >= 4 else ""
    rect = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" class="{kind or "Python"}"/>'
    return f"<g><title>{escape(title)}: {share:.1%}</title>{rect}{words}</g>"


if __name__ == "__main__":
    main()

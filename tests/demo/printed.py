"""A site that follows a page of the documentation: it writes the files and runs the commands that the page prints."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.py)(?: \((\w+)\))?\n")  # "# shop/tasks.py", "# mysite/settings.py (SQLite)"
PROGRAM = re.compile(r"(?P<variables>(?:\w+=\S+ )*)(?P<program>\S+) ")
PROGRAMS = {"python": '"$PYTHON"', "django-admin": '"$PYTHON" -m django'}
KILLED = "Killed"  # what a shell prints below a command that SIGKILL has ended
TIMEOUT_SECONDS = 120.0


@dataclass
class PrintedSite:
    folder: Path
    database: str  # as README.md names it
    server: str  # Python for the settings: where the database of this test is

    def follow_page(self, path: str, after: str = "") -> None:
        """Do what the blocks of a page show. after: the heading with the first of them."""
        page = (CHECKOUT / path).read_text(encoding="utf-8")
        for language, text in FENCED.findall(page[page.index(after) :]):
            self.follow(language, text)

    def follow(self, language: str, text: str) -> None:
        """Do what a block of the page shows."""
        if language == "console":
            for command, output in commands(text):
                is_killed = KILLED in output
                printed = self.run(command, is_killed=is_killed)
                self.check(command, printed, [line for line in output if line != KILLED])
        elif language == "python":
            if match := FILE.match(text):
                self.write(self.folder / match[1], match[2], text)
            else:
                self.run(f"python manage.py shell -c {shlex.quote(text)}")

    def write(self, path: Path, database: str | None, text: str) -> None:
        if database not in (None, self.database):
            return
        if path.name == "settings.py":
            text = f"{path.read_text()}\n{text}" + (self.server if database else "")
        path.write_text(text)

    def run(self, command: str, *, is_killed: bool = False) -> str:
        """Return what the command prints."""
        beginning = PROGRAM.match(command)
        assert beginning, command
        program = PROGRAMS[beginning["program"]]
        line = f"{beginning['variables']}exec {program} {command[beginning.end() :]}"
        result = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
        )
        assert result.returncode == (-signal.SIGKILL if is_killed else 0), f"{command}\n{result.stdout}"
        return result.stdout

    def check(self, command: str, printed: str, expected: list[str]) -> None:
        lines = [line.rstrip() for line in printed.splitlines()]
        for line in expected:
            pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
            assert any(pattern.fullmatch(other) for other in lines), f"{command} did not print {line!r}:\n{printed}"


def environment() -> dict[str, str]:
    ours = ("DJANGO_", "PYTHON", "JOBQUEUE_", "DATABASE_URL")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return (
        kept
        | {"PYTHON": sys.executable, "PYTHONPATH": str(CHECKOUT), "PYTHONUTF8": "1", "COLUMNS": "100"}
        | {"PYTHONUNBUFFERED": "1"}
    )


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command after "$ ", with the lines that it prints."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield command, output

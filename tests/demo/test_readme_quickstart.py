"""The quick start of README.md works as printed in an empty site, on PostgreSQL and on SQLite."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class
from psycopg import sql

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.py)(?: \((\w+)\))?\n")  # "# shop/tasks.py", "# mysite/settings.py (SQLite)"
PROGRAMS = {"python": '"$PYTHON"', "django-admin": '"$PYTHON" -m django'}
TIMEOUT_SECONDS = 120.0


@dataclass
class Site:
    folder: Path
    database: str  # as README.md names it
    server: str  # Python for the settings: where the database of this test is

    def follow(self, language: str, text: str) -> None:
        """Do what a block of README.md shows."""
        if language == "console":
            for command, output in commands(text):
                self.check(command, self.run(command), output)
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

    def run(self, command: str) -> str:
        """Return what the command prints."""
        program, _, arguments = command.partition(" ")
        result = subprocess.run(
            ["sh", "-c", f"{PROGRAMS[program]} {arguments}"],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}"
        return result.stdout

    def check(self, command: str, printed: str, expected: list[str]) -> None:
        lines = [line.rstrip() for line in printed.splitlines()]
        for line in expected:
            pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
            assert any(pattern.fullmatch(other) for other in lines), f"{command} did not print {line!r}:\n{printed}"


def environment() -> dict[str, str]:
    ours = ("DJANGO_", "PYTHON", "JOBQUEUE_", "DATABASE_URL")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return kept | {"PYTHON": sys.executable, "PYTHONPATH": str(CHECKOUT), "PYTHONUTF8": "1", "COLUMNS": "100"}


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command after "$ ", with the lines that it prints."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield command, output


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The database of the site: its name in README.md, and what its settings add."""
    if request.param == "SQLite":
        yield request.param, ""
        return
    url = request.getfixturevalue("process_environment")["DATABASE_URL"]
    name = f"mysite_{os.getpid()}"
    here = {key: settings.DATABASES["default"][key] for key in ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield request.param, f'DATABASES["default"].update({here | {"NAME": name}!r})\n'
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize("database", ["PostgreSQL", "SQLite"], indirect=True)
def test_quick_start_works_as_printed(database: tuple[str, str], tmp_path: Path) -> None:
    site = Site(tmp_path, *database)
    for language, text in FENCED.findall(README):
        site.follow(language, text)


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md"])
def test_other_commands_have_valid_arguments(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    lines = [line for language, block in FENCED.findall(text) if language == "sh" for line in block.splitlines()]
    commands = [re.split(r" [|>]", line)[0].partition("manage.py ")[2] for line in lines if "manage.py " in line]
    assert commands
    for name, *arguments in (shlex.split(line, comments=True) for line in commands):
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(arguments)

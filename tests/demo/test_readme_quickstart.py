"""The quick start of README.md works as printed in an empty site, on PostgreSQL and on SQLite."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from tests.demo.printed import CHECKOUT, FENCED, PrintedSite


@pytest.mark.parametrize("database", ["PostgreSQL", "SQLite"], indirect=True)
def test_quick_start_works_as_printed(database: tuple[str, str], tmp_path: Path) -> None:
    PrintedSite(tmp_path, *database).follow_page("README.md", after="\n## Quick start\n")


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md", "docs/workflows.md", "docs/how-to-workflows.md"])
def test_other_commands_have_valid_arguments(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    lines = [line for language, block in FENCED.findall(text) if language == "sh" for line in block.splitlines()]
    commands = [re.split(r" [|>]", line)[0].partition("manage.py ")[2] for line in lines if "manage.py " in line]
    assert commands
    for name, *arguments in (shlex.split(line, comments=True) for line in commands):
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(arguments)

"""Helpers of the tests of `manage.py jobqueue`."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper

from jobqueue.management.cli.console import Console


class CommandResult(NamedTuple):
    """Output and exit code of a command."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def jobqueue(*words: object) -> CommandResult:
    """Run a command as the shell would, in this process."""
    out, err = StringIO(), StringIO()
    try:
        call_command("jobqueue", *map(str, words), stdout=out, stderr=err)
    except CommandError as error:
        return CommandResult(out.getvalue(), f"{err.getvalue()}{error}", error.returncode)
    return CommandResult(out.getvalue(), err.getvalue(), 0)


def console(err: StringIO | None = None) -> Console:
    return Console(OutputWrapper(StringIO()), OutputWrapper(err or StringIO()))


BOTH = pytest.mark.django_db(databases=["default", "sqlite"])

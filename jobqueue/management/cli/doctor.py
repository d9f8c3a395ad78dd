"""`doctor`: checks that need the database. Each problem has an advice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from django.core import checks
from django.core.management.base import CommandError
from django.db import connections

from jobqueue.declarations.checks import run_checks
from jobqueue.engine import Engine
from jobqueue.management.cli.backends import engines
from jobqueue.management.cli.console import Console
from jobqueue.management.cli.notification_checks import notification_findings
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.overview.findings import access_findings, findings, has_error
from jobqueue.operations.overview.stats import read_stats
from jobqueue.operations.queries import many
from jobqueue.values.text import printable

KEYS_CHECKED = 200  # of limits, those with the most BLOCKED tasks
LEVELS = {checks.INFO: "ok", checks.WARNING: "warning", checks.ERROR: "error"}


def doctor(console: Console, flags: Any) -> None:
    """Print what the checks found. Raises CommandError, exit code 1, if one is an error."""
    messages = run_checks() or [checks.Info("Settings: TASKS, tasks, actors and schedules pass the system checks.")]
    if not has_error(messages):
        messages += [message for engine in engines(flags.backend) for message in _backend(engine)]
    lines = [
        {
            "level": LEVELS.get(message.level, "error"),
            "text": f"{message.id}: {message.msg}" if message.id else message.msg,
            "advice": message.hint or "",
        }
        for message in messages
    ]
    if console.is_json:
        console.write_json(lines)
    else:
        _print(console, lines)
    if errors := [line for line in lines if line["level"] == "error"]:
        raise CommandError(f"{many(len(errors), 'error')} found.")


def _print(console: Console, messages: Sequence[dict[str, str]]) -> None:
    width, indent = console.width or 120, " " * 9  # an id that is broken at a hyphen cannot be copied
    for message in messages:
        text, advice = printable(f"{message['level']:<8} {message['text']}"), printable(message["advice"])
        for line in (
            *textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False),
            *textwrap.wrap(advice, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False),
        ):
            console.write(line)


def _backend(engine: Engine) -> Iterator[checks.CheckMessage]:
    """Check one backend. A failed check ends those that depend on it."""
    access = list(access_findings(engine))
    yield from access
    if has_error(access):
        return
    yield checks.Info(f"Backend {engine.alias}: database {engine.database!r} is reachable and migrated.")
    stats = read_stats(engine)
    yield from findings(engine, stats, keys_checked=KEYS_CHECKED)
    if connections[engine.database].vendor == "postgresql" and engine.options.notify:
        yield from notification_findings(engine)


VERB = Verb("doctor", "Check the installation and give advice.", doctor)

"""The engines that a command works on. Wrong aliases and queue names end the command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobqueue.api import declared_queues
from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS
from jobqueue.declarations.backends import declared_aliases
from jobqueue.engine import Engine, engine_for
from jobqueue.management.cli.console import Console
from jobqueue.operations.formatting import short_type
from jobqueue.operations.list.names import known_queues, known_types
from jobqueue.values.text import did_you_mean


def engines(alias: str | None) -> list[Engine]:
    """Return the engine of a backend, or of every backend. Raises CommandError for an unknown alias."""
    aliases = declared_aliases()
    if not aliases:
        raise CommandError(
            'TASKS has no jobqueue backend. Add {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}}.'
        )
    if alias is not None and alias not in aliases:
        raise CommandError(f"TASKS has no jobqueue backend {alias!r}. Its backends: {', '.join(aliases)}.")
    try:
        return [engine_for(name) for name in ([alias] if alias is not None else aliases)]
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error


def find_engine(alias: str | None) -> Engine:
    """Return the engine of a backend; without an alias, that of the default backend, else the first."""
    candidates = engines(alias)
    return next((engine for engine in candidates if engine.alias == DEFAULT_TASK_BACKEND_ALIAS), candidates[0])


def check_queue_names(engine: Engine, names: Iterable[str]) -> None:
    """Raise CommandError for a misspelled queue. A queue that QUEUES no longer has may be paused or hold tasks."""
    declared = declared_queues(engine.alias)
    for name in names if declared else ():
        if not (
            name in declared or engine.db.queues.filter(name=name).exists() or name in engine.queues.queues_in_use()
        ):
            meant, all_known = did_you_mean(name, declared), ", ".join(sorted(declared))
            raise CommandError(f"Unknown queue {name!r}{meant}. QUEUES of TASKS[{engine.alias!r}]: {all_known}.")


def report_unknown(
    console: Console,
    databases: Iterable[str],
    queues: Sequence[str],
    tasks: Sequence[str],
    *,
    has_rows: bool,
    is_fatal: bool = True,
) -> None:
    """Name the queues and tasks that do not exist: as a warning, or if nothing was found as a CommandError."""
    types = {name for database in databases for name in known_types(database)}
    kinds = (
        ("task", tasks, types | {*map(short_type, types)}),
        ("queue", queues, {name for database in databases for name in known_queues(database)}),
    )
    unknown = [
        f"Unknown {kind} {name!r}{did_you_mean(name, known_names)}."
        for kind, names, known_names in kinds
        for name in names
        if name not in known_names
        and not (has_rows and len(names) == 1)  # rows may have a name that code no longer has
    ]
    if unknown and not has_rows and is_fatal:
        raise CommandError(" ".join(unknown))
    for sentence in unknown:
        console.say(f"Warning: {sentence}")

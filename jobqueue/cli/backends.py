"""The engines that a command works on. Wrong aliases and queue names end the command."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobqueue.api import aliases, declared_queues
from jobqueue.compat import DEFAULT_TASK_BACKEND_ALIAS
from jobqueue.engine import engine_for
from jobqueue.engine.engine import Engine


def engines(alias: str | None) -> list[Engine]:
    """Return the engine of a backend, or of every backend. Raises CommandError for an unknown alias."""
    known = aliases()
    if not known:
        raise CommandError(
            'TASKS has no jobqueue backend. Add {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}}.'
        )
    if alias is not None and alias not in known:
        raise CommandError(f"TASKS has no jobqueue backend {alias!r}. Its backends: {', '.join(known)}.")
    try:
        return [engine_for(name) for name in ([alias] if alias is not None else known)]
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error


def engine_of(alias: str | None) -> Engine:
    """Return the engine of a backend; without an alias, that of the default backend, else the first."""
    found = engines(alias)
    return next((engine for engine in found if engine.alias == DEFAULT_TASK_BACKEND_ALIAS), found[0])


def check_queue_names(engine: Engine, names: Iterable[str]) -> None:
    """Raise CommandError for a misspelled queue. A queue that QUEUES no longer has may be paused or hold tasks."""
    known = declared_queues(engine.alias)
    for name in names if known else ():
        if not (name in known or engine.queues.filter(name=name).exists() or name in engine.queues_in_use()):
            text = f"Unknown queue {name!r}. QUEUES of TASKS[{engine.alias!r}]: {', '.join(sorted(known))}."
            raise CommandError(text)

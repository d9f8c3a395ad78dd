"""What a start prints: the executor, versions, database, queues and slots."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import django
from django.db import connections

from jobqueue import __version__, registry
from jobqueue.engine import engine_for
from jobqueue.executor.settings import ExecutorSettings


def lines(settings: ExecutorSettings, name: str, processes: int) -> Iterator[str]:
    database = connections[engine_for(settings.backend).database]
    queues = ", ".join(served_queues(settings, processes)) or "every queue"
    yield (
        f"jobqueue {__version__} · executor {name} · django {django.get_version()} · python "
        f"{platform.python_version()} · {database.display_name} (database {database.alias!r})"
    )
    yield f"queues      {queues:<36} {len(registry.all())} tasks registered"
    yield f"slots       {processes} × ({settings.threads} threads + {settings.async_slots} async)"
    yield f"shutdown    {settings.shutdown_timeout:g} s grace on SIGTERM, Ctrl-C twice to release tasks at once"


def served_queues(settings: ExecutorSettings, processes: int) -> Iterator[str]:
    each = " each" if processes > 1 else ""
    for name in settings.queues or ():
        limit = settings.queue_limits.get(name)
        yield name if limit is None else f"{name} (max {limit}{each})"

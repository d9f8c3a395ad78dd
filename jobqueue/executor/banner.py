"""What a start says: which executor, of which versions, on which database, with how many slots."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import django
import psycopg
from django.db import Error, connections

from jobqueue import __version__, registry
from jobqueue.engine import engine_for
from jobqueue.executor.settings import ExecutorSettings

CONNECT_SECONDS = 2  # a database that is away is no reason to say nothing; the executor itself waits longer


def lines(settings: ExecutorSettings, name: str, processes: int) -> Iterator[str]:
    python = ".".join(map(str, sys.version_info[:3]))
    stored = server(engine_for(settings.backend).database)
    queues = ", ".join(served(settings, processes)) or "every queue"
    each = f"{settings.threads} threads + {settings.async_slots} async"
    yield f"jobqueue {__version__} · executor {name} · django {django.get_version()} · python {python} · {stored}"
    yield f"queues      {queues:<36} {len(registry.all())} tasks registered"
    yield f"slots       {processes} × ({each})"
    yield f"shutdown    {settings.shutdown_timeout:g} s grace on SIGTERM, Ctrl-C twice to hand back at once"


def served(settings: ExecutorSettings, processes: int) -> Iterator[str]:
    each = " each" if processes > 1 else ""
    for name in settings.queues or ():
        most = settings.queue_limits.get(name)
        yield name if most is None else f"{name} (max {most}{each})"


def server(alias: str) -> str:
    """Name the server of a database, with its version if it answers soon; leaves no connection behind."""
    connection = connections[alias].copy()
    options = {key: value for key, value in connection.settings_dict["OPTIONS"].items() if key != "pool"}
    if connection.vendor == "postgresql":
        options["connect_timeout"] = CONNECT_SECONDS
    connection.settings_dict["OPTIONS"] = options
    try:
        connection.connect()
        version = ".".join(map(str, connection.get_database_version()))
    except (Error, psycopg.Error):  # connect() passes on what the driver raises
        version = "(no answer yet)"
    finally:
        connection.close()
    return f"{connection.display_name} {version} (database {alias!r})"

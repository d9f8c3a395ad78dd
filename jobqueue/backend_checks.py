"""What is wrong with the settings of one backend, found without a database connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobqueue import conf

CONNECTIONS_BESIDE_SLOTS = 4  # of an executor: loop, heartbeat, listener, and one that reads after a notification
CONNECTIONS_FOR_ASYNC_TASKS = 32  # threads for async tasks that call the ORM
CONNECTIONS_OF_AN_EXECUTOR = 8 + CONNECTIONS_BESIDE_SLOTS  # with the default number of threads


def backend_problems(alias: str, options: Any) -> Iterator[checks.CheckMessage]:
    """Yield the problems of one backend. options: its OPTIONS, which may have any type."""
    here = f"TASKS[{alias!r}]"
    if not apps.is_installed("jobqueue"):
        yield checks.Error(
            f"{here} uses jobqueue, which is not an installed app.",
            hint="Add 'jobqueue' to INSTALLED_APPS and migrate.",
            id="jobqueue.E003",
        )
    for problem in conf.problems(options):
        yield checks.Error(f"{here}['OPTIONS']: {problem}.", id="jobqueue.E004")
    database = options.get("DATABASE", "default") if isinstance(options, Mapping) else None
    if not isinstance(database, str):
        return
    if database not in settings.DATABASES:
        yield checks.Error(
            f"{here}['OPTIONS']: DATABASE is {database!r}, which is not an alias in DATABASES.",
            hint=f"Aliases are {', '.join(map(repr, settings.DATABASES))}.",
            id="jobqueue.E005",
        )
        return
    yield from _database_problems(here, database)


def pool_size(pool: Any) -> int | None:
    """Return the maximum size of Django's OPTIONS["pool"], None without a pool. The default of psycopg is 4."""
    match pool:
        case None | False:
            return None
        case {"max_size": int(size)} | {"min_size": int(size)}:
            return size
        case _:
            return 4


def _database_problems(here: str, alias: str) -> Iterator[checks.CheckMessage]:
    try:
        connection: Any = connections[alias]
    except ImproperlyConfigured as error:
        yield checks.Error(
            f"{here}: database {alias!r} cannot be used: {error}",
            hint="pip install psycopg[binary]",
            id="jobqueue.E006",
        )
        return
    if connection.vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            yield checks.Error(
                f"{here}: database {alias!r} uses psycopg2. jobqueue needs psycopg 3.",
                hint="pip install psycopg[binary]. Django prefers it to psycopg2.",
                id="jobqueue.E007",
            )
        most = pool_size(connection.settings_dict["OPTIONS"].get("pool"))
        if most is not None and most < CONNECTIONS_OF_AN_EXECUTOR:
            yield checks.Warning(
                f"{here}: the pool of database {alias!r} has at most {most} connections. An executor of 8 threads "
                f"needs {CONNECTIONS_OF_AN_EXECUTOR}: its threads and its heartbeat would wait for each other.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['pool'] = {{'max_size': threads + 4}}, or no pool.",
                id="jobqueue.W003",
            )
    elif connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            # Only a warning, because tests often use such a database.
            yield checks.Warning(
                f"{here}: database {alias!r} is SQLite in memory. Other processes cannot read it.",
                hint="Use PostgreSQL, or a database file.",
                id="jobqueue.W001",
            )
        elif connection.settings_dict["OPTIONS"].get("transaction_mode", "").upper() != "IMMEDIATE":
            yield checks.Warning(
                f"{here}: transactions of the SQLite database {alias!r} begin without the write lock. "
                "Enqueueing beside an executor can fail with 'database is locked'.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'.",
                id="jobqueue.W002",
            )
    else:
        yield checks.Error(
            f"{here}: database {alias!r} is {connection.display_name}; jobqueue needs PostgreSQL or SQLite.",
            hint="Point OPTIONS['DATABASE'] at a PostgreSQL database.",
            id="jobqueue.E008",
        )

"""
The engine: all changes of queue rows go through it.

`engine` has the verbs. `portable` performs them on Django's ORM, and `postgres` what differs on PostgreSQL. `clock` is
the database's time. `schema` finds missing tables and migrations.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.core.signals import setting_changed
from django.db import connections

from jobqueue.conf.options import options_for
from jobqueue.engine.engine import Engine


@cache
def engine_for(alias: str = "default") -> Engine:
    """
    Return the engine of a backend, by the vendor of its database.

    Raises ImproperlyConfigured when TASKS has no such alias or its OPTIONS are wrong.
    """
    options = options_for(alias)
    if connections[options.database].vendor == "postgresql":
        from jobqueue.engine.postgres.engine import PostgresEngine

        return PostgresEngine(alias, options)
    return Engine(alias, options)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("TASKS", "DATABASES"):
        engine_for.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.engine")

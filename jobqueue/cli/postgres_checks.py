"""The checks of `doctor` that need a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING
from uuid import uuid4

from django.core import checks
from django.db import DatabaseError, connections

from jobqueue import registry
from jobqueue.checks import CONNECTIONS_BESIDE_SLOTS, CONNECTIONS_FOR_ASYNC_TASKS, pool_size
from jobqueue.cli.console import first_line
from jobqueue.engine.engine import Engine
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.stats import BackendStats
from jobqueue.models import Executor, InboxMessage, Queue, Task

if TYPE_CHECKING:
    from jobqueue.engine.postgres.engine import PostgresEngine

PROBE_SECONDS = 3.0
LOCK_LONG_SECONDS = 5.0
LIMITS = ("max_connections", "superuser_reserved_connections", "reserved_connections")
OWN_LIMITS = {"role_limit": "the role's CONNECTION LIMIT", "database_limit": "the database's CONNECTION LIMIT"}
SAFETY = {
    "fsync": (checks.Error, "a crash of the machine may destroy the whole database"),
    "full_page_writes": (checks.Error, "a crash of the machine may destroy pages of the database"),
    "synchronous_commit": (checks.Warning, "a crash of the server loses tasks whose enqueue() had returned"),
}


def lock_findings(engine: PostgresEngine) -> Iterator[checks.CheckMessage]:
    """Name sessions whose locks stop executors. A lock on a whole table is an error, because it stops all executors."""
    executors = Executor._meta.db_table
    names = [executors, *(model._meta.db_table for model in (Task, Queue, InboxMessage))]
    rows = engine.db.query("lock_holders", names=names, executors=executors, seconds=LOCK_LONG_SECONDS)
    for lock, mode, pid, role, name, state, open_seconds, idle_seconds in rows:
        if pid is None:
            holder = "a prepared transaction"
            advice = "Find it in pg_prepared_xacts. Run COMMIT PREPARED or ROLLBACK PREPARED."
        else:
            since = "" if open_seconds is None else f", its transaction open for {duration(open_seconds)}"
            last = "" if idle_seconds is None else f", its last statement {duration(idle_seconds)} ago"
            holder = f"session {pid} of role {role} ({name or 'no name'}, {state or 'state unknown'}{since}{last})"
            advice = f"End its transaction, or SELECT pg_terminate_backend({pid});"
        if mode.startswith("Row"):
            text = f"{holder} keeps rows of {lock} locked. The executors work, but the admin shows 'Not responding'."
            yield checks.Warning(text, hint=advice)
        elif lock in names:
            yield checks.Error(f"{holder} keeps the table {lock} locked ({mode}). Executors wait for it.", hint=advice)
        else:
            text = f"{holder} holds the {lock}. Until it releases the lock, executors cannot prune or add up counters."
            yield checks.Warning(text, hint=advice)


def server_findings(engine: PostgresEngine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Check durability, connections and notifications."""
    settings = dict(engine.db.query("server_settings", names=[*SAFETY, *LIMITS]))
    yield from _durability(settings)
    yield from _tables(engine)
    yield from _connections(settings, stats)
    yield from _pool(engine, stats)
    if engine.options.notify:
        yield from _notifications(engine)


def _durability(settings: Mapping[str, str]) -> Iterator[checks.CheckMessage]:
    unsafe = [name for name in SAFETY if settings.get(name) == "off"]
    for name in unsafe:
        level, danger = SAFETY[name]
        yield level(f"{name} is off: {danger}.", hint=f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")
    if not unsafe:
        yield checks.Info("committed data survives a crash (fsync, synchronous_commit).")


def _tables(engine: PostgresEngine) -> Iterator[checks.CheckMessage]:
    names = [model._meta.db_table for model in (Task, Queue, InboxMessage)]
    for (name,) in engine.db.query("unlogged_tables", names=names):
        text = f"{name} is UNLOGGED: a crash of the server empties it."
        yield checks.Error(text, hint=f"ALTER TABLE {name} SET LOGGED;")


def _connections(settings: Mapping[str, str], stats: BackendStats) -> Iterator[checks.CheckMessage]:
    maximum, *reserved = (int(settings.get(name, 0)) for name in LIMITS)
    own = {title: int(settings.get(name, -1)) for name, title in OWN_LIMITS.items()}  # -1: none
    limits = {"max_connections": maximum - sum(reserved)} | {title: value for title, value in own.items() if value >= 0}
    tightest = min(limits, key=limits.__getitem__)
    usable, used = limits[tightest], int(settings["connections"])
    has_async = any(iscoroutinefunction(task.func) for task in registry.all().values())
    for_async = CONNECTIONS_FOR_ASYNC_TASKS if has_async else 0
    wanted = sum(executor.row.slots + CONNECTIONS_BESIDE_SLOTS + for_async for executor in stats.alive)
    if wanted > usable:
        each = f"one per slot, {CONNECTIONS_BESIDE_SLOTS} more" + (
            f", {for_async} for async tasks" if for_async else ""
        )
        yield checks.Warning(
            f"executors may open {wanted} connections (each executor {each}); the server allows {usable}.",
            hint=f"Raise {tightest}, or give run_executors fewer --threads or --processes.",
        )
    elif used > 0.9 * usable:
        advice = "Raise max_connections, or close idle sessions: see pg_stat_activity."
        yield checks.Warning(f"{used} of {usable} connections are in use.", hint=advice)
    else:
        yield checks.Info(f"executors may open {wanted} of {usable} connections; {used} are in use.")


def _pool(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Compare Django's pool with the threads of running executors; settings do not contain their flags."""
    pool_max = pool_size(connections[engine.database].settings_dict["OPTIONS"].get("pool"))
    if pool_max is None:
        return
    for executor in stats.alive:
        wanted = executor.row.slots + CONNECTIONS_BESIDE_SLOTS
        if wanted > pool_max:
            text = f"executor {executor.row.name} needs {wanted} connections, but its pool has at most {pool_max}."
            option = f"DATABASES[{engine.database!r}]['OPTIONS']['pool'] = {{'max_size': {wanted}}}"
            yield checks.Warning(text, hint=f"{option}, or fewer --threads.")


def _notifications(engine: Engine) -> Iterator[checks.CheckMessage]:
    """Send a notification. A pooler in transaction mode accepts LISTEN and delivers nothing."""
    from psycopg import Error

    from jobqueue.engine.postgres.connection import notify_from_elsewhere, statement

    probe = f"{engine.alias} !doctor-{uuid4()}"
    wrapper = connections[engine.database].copy()
    wrapper.settings_dict["OPTIONS"].pop("pool", None)  # a connection that listens must not return to the pool
    try:
        wrapper.ensure_connection()
        connection = wrapper.connection
        connection.autocommit = True
        connection.execute(statement("listen"))
        notify_from_elsewhere(engine.database, probe)
        heard = any(notification.payload == probe for notification in connection.notifies(timeout=PROBE_SECONDS))
    except (DatabaseError, Error) as error:
        text = f"LISTEN could not be tested: {first_line(error)}"
        yield checks.Warning(text, hint="Check that connections are left.")
        return
    finally:
        wrapper.close()
    if heard:
        yield checks.Info("LISTEN/NOTIFY works: tasks start immediately.")
    else:
        poll = f"executors poll every {engine.options.poll_interval:g} s"
        yield checks.Warning(
            f"notifications do not arrive (a pooler in transaction mode?); {poll}.",
            hint="Give executors a direct connection, or set NOTIFY to False.",
        )

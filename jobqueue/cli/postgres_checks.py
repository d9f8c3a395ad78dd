"""What `doctor` asks of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from django.db import DatabaseError, connections

from jobqueue import registry
from jobqueue.backend_checks import CONNECTIONS_BESIDE_SLOTS, CONNECTIONS_FOR_ASYNC_TASKS, pool_size
from jobqueue.cli.console import first_line
from jobqueue.engine.base import Engine
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.stats import Figures
from jobqueue.models import Executor, InboxMessage, Queue, Task

if TYPE_CHECKING:
    from jobqueue.engine.postgresql import PostgresEngine

PROBE_SECONDS = 3.0
SNAPSHOT_LONG_SECONDS = 900.0
LOCK_LONG_SECONDS = 5.0
IDLE = "idle_session_timeout"  # milliseconds, 0 for none
LIMITS = ("max_connections", "superuser_reserved_connections", "reserved_connections")
OWN_LIMITS = {"role_limit": "the role's CONNECTION LIMIT", "database_limit": "the database's CONNECTION LIMIT"}
SAFETY = {
    "fsync": ("error", "a crash of the machine may destroy the whole database"),
    "full_page_writes": ("error", "a crash of the machine may destroy pages of the database"),
    "synchronous_commit": ("warning", "a crash of the server loses tasks whose enqueue() had returned"),
}

Said = tuple[str, str, str]  # level, what is found, what to do


def lock_findings(engine: Engine) -> Iterator[Said]:
    """Name sessions whose locks stop executors. A lock on a whole table is an error, because it stops all executors."""
    if connections[engine.database].vendor != "postgresql":
        return
    executors = Executor._meta.db_table
    names = [executors, *(model._meta.db_table for model in (Task, Queue, InboxMessage))]
    rows = cast("PostgresEngine", engine).rows(
        "lock_holders", names=names, executors=executors, seconds=LOCK_LONG_SECONDS
    )
    for what, mode, pid, role, name, state, lasted, asked in rows:
        if pid is None:
            holder, advice = (
                "a prepared transaction",
                "Find it in pg_prepared_xacts. Run COMMIT PREPARED or ROLLBACK PREPARED.",
            )
        else:
            since = "" if lasted is None else f", its transaction open for {duration(timedelta(seconds=lasted))}"
            last = "" if asked is None else f", its last statement {duration(timedelta(seconds=asked))} ago"
            holder = f"session {pid} of role {role} ({name or 'no name'}, {state or 'state unknown'}{since}{last})"
            advice = f"End its transaction, or SELECT pg_terminate_backend({pid});"
        if mode.startswith("Row"):
            said = f"{holder} keeps rows of {what} locked. Their executors work, but the admin shows them as silent."
        elif what in names:
            said = f"{holder} keeps the table {what} locked ({mode}). Executors wait for it."
        else:
            said = f"{holder} holds the {what}. Until it releases the lock, executors cannot prune or add up counters."
        yield "error" if what in names and not mode.startswith("Row") else "warning", said, advice


def server_findings(engine: Engine, now: Figures) -> Iterator[Said]:
    """Check durability, connections and notices; nothing on SQLite, which has no server."""
    if connections[engine.database].vendor != "postgresql":
        return
    from jobqueue.engine.postgresql import PostgresEngine

    assert isinstance(engine, PostgresEngine)
    settings = dict(engine.rows("server_settings", names=[*SAFETY, *LIMITS, IDLE]))
    yield from _durability(settings)
    yield from _tables(engine)
    yield from _snapshots(engine)
    yield from _connections(settings, now)
    yield from _pool(engine, now)
    yield from _idling(engine, int(settings.get(IDLE, 0)) / 1000)
    if engine.options.notify:
        yield from _notices(engine)


def _durability(settings: dict[str, str]) -> Iterator[Said]:
    unsafe = [name for name in SAFETY if settings.get(name) == "off"]
    for name in unsafe:
        level, danger = SAFETY[name]
        yield level, f"{name} is off: {danger}.", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
    if not unsafe:
        yield "ok", "what is committed survives a crash (fsync, synchronous_commit).", ""


def _tables(engine: PostgresEngine) -> Iterator[Said]:
    names = [model._meta.db_table for model in (Task, Queue, InboxMessage)]
    unlogged = [name for (name,) in engine.rows("unlogged_tables", names=names)]
    for name in unlogged:
        yield "error", f"{name} is UNLOGGED: a crash of the server empties it.", f"ALTER TABLE {name} SET LOGGED;"


def _snapshots(engine: PostgresEngine) -> Iterator[Said]:
    """A report that takes hours: meanwhile each claim passes over what was claimed since it began."""
    for pid, name, state, seconds in engine.rows("oldest_snapshot"):
        if seconds > SNAPSHOT_LONG_SECONDS:
            age = duration(timedelta(seconds=seconds))
            yield (
                "warning",
                f"a transaction has been open for {age} (pid {pid}, {name or 'no name'}, {state}): claims get slower.",
                f"They pass over all that was claimed since. Let it end, or SELECT pg_terminate_backend({pid});",
            )


def _connections(settings: dict[str, str], now: Figures) -> Iterator[Said]:
    most, *reserved = (int(settings.get(name, 0)) for name in LIMITS)
    limits = {"max_connections": most - sum(reserved)}
    for name, what in OWN_LIMITS.items():
        if (own := int(settings.get(name, -1))) >= 0:
            limits[what] = own
    tightest = min(limits, key=limits.__getitem__)
    usable = limits[tightest]
    has_async = any(iscoroutinefunction(task.func) for task in registry.all().values())
    for_async = CONNECTIONS_FOR_ASYNC_TASKS if has_async else 0
    wanted = sum(executor.row.slots + CONNECTIONS_BESIDE_SLOTS + for_async for executor in now.serving)
    if wanted > usable:
        beside = f"{CONNECTIONS_BESIDE_SLOTS} beside slots" + (f" and {for_async} for async tasks" if for_async else "")
        yield (
            "warning",
            f"executors may open {wanted} connections, each {beside}; {usable} are there.",
            f"Raise {tightest}, or give run_executors fewer --threads or --processes.",
        )
    elif int(settings["connections"]) > 0.9 * usable:
        yield (
            "warning",
            f"{settings['connections']} of {usable} connections are in use.",
            "Raise max_connections, or close what is idle: see pg_stat_activity.",
        )
    else:
        yield "ok", f"executors may open {wanted} of {usable} connections; {settings['connections']} are in use.", ""


def _pool(engine: Engine, now: Figures) -> Iterator[Said]:
    """Hold what executors run against Django's pool; the check of settings knows no flags of theirs."""
    most = pool_size(connections[engine.database].settings_dict["OPTIONS"].get("pool"))
    if most is None:
        return
    for executor in (one for one in now.serving if one.row.slots + CONNECTIONS_BESIDE_SLOTS > most):
        wanted = executor.row.slots + CONNECTIONS_BESIDE_SLOTS
        yield (
            "warning",
            f"executor {executor.row.name} needs {wanted} connections of its pool, which gives {most} at most.",
            f"DATABASES[{engine.database!r}]['OPTIONS']['pool'] = {{'max_size': {wanted}}}, or fewer --threads.",
        )


def _idling(engine: Engine, limit_seconds: float) -> Iterator[Said]:
    """Look whether the server ends a session between two beats, of which there are three in a timeout."""
    timeout = engine.options.heartbeat_timeout
    if 0 < limit_seconds <= timeout / 3:
        yield (
            "warning",
            f"{IDLE} is {limit_seconds:g} s: it ends an executor's session between beats, {timeout / 3:g} s apart.",
            f"ALTER ROLE {{the role of the executors}} SET {IDLE} = '{2 * timeout / 3:.0f}s';",
        )


def _notices(engine: Engine) -> Iterator[Said]:
    """Send a notice: a pooler in transaction mode takes LISTEN without a word and delivers nothing."""
    from psycopg import Error

    from jobqueue.engine.statements import notify_from_elsewhere, statement

    poll = engine.options.poll_interval
    probe = f"{engine.alias} !doctor-{uuid4()}"
    wrapper = connections[engine.database].copy()
    wrapper.settings_dict["OPTIONS"].pop("pool", None)  # nobody is to get a connection that listens
    try:
        wrapper.ensure_connection()
        connection = wrapper.connection
        connection.autocommit = True
        connection.execute(statement("listen"))
        notify_from_elsewhere(engine.database, probe)
        heard = any(notice.payload == probe for notice in connection.notifies(timeout=PROBE_SECONDS))
    except (DatabaseError, Error) as error:
        yield "warning", f"LISTEN could not be tried: {first_line(error)}", "See whether connections are left."
        return
    finally:
        wrapper.close()
    if heard:
        yield "ok", "notices arrive (LISTEN), so that executors start tasks at once.", ""
    else:
        yield (
            "warning",
            f"notices do not arrive (a pooler in transaction mode?); executors poll every {poll:g} s.",
            "Give executors a direct connection, or set NOTIFY to False.",
        )

"""The findings about a PostgreSQL server: locks, durability and connections. They take a few milliseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.db import connections
from django.db.models import AutoField
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.conf.connection_pool import CONNECTIONS_BESIDE_SLOTS, CONNECTIONS_FOR_ASYNC_TASKS, pool_size
from jobqueue.declarations import registry
from jobqueue.models import Executor, Heartbeat, InboxMessage, Queue, Task
from jobqueue.operations.formatting import duration
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.stats import BackendStats

if TYPE_CHECKING:
    from jobqueue.engine import PostgresEngine

LOCK_LONG_SECONDS = 5.0
TABLES = [model._meta.db_table for model in (Task, Queue, InboxMessage)]
EXECUTORS, HEARTBEATS = Executor._meta.db_table, Heartbeat._meta.db_table
SET_SEQUENCE = "SELECT setval('{sequence}', (SELECT max(id) FROM {table}));"  # for people to run
LIMITS = ("max_connections", "superuser_reserved_connections", "reserved_connections")
OWN_LIMITS = {
    "role_limit": gettext_lazy("the role's CONNECTION LIMIT"),
    "database_limit": gettext_lazy("the database's CONNECTION LIMIT"),
}
SAFETY = {
    "fsync": (
        checks.Error,
        gettext_lazy("Backend %(backend)s: fsync is off: a crash of the machine may destroy the whole database."),
    ),
    "full_page_writes": (
        checks.Error,
        gettext_lazy(
            "Backend %(backend)s: full_page_writes is off: a crash of the machine may destroy pages of the database."
        ),
    ),
    "synchronous_commit": (
        checks.Warning,
        gettext_lazy(
            "Backend %(backend)s: synchronous_commit is off: "
            "a crash of the server loses tasks whose enqueue() had returned."
        ),
    ),
}


def server_findings(engine: PostgresEngine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Check durability, indexes, sequences and connections."""
    settings = dict(engine.db.query("server_settings", names=[*SAFETY, *LIMITS]))
    yield from _durability(engine, settings)
    yield from _indexes(engine)
    yield from _sequences(engine)
    yield from _connections(settings, stats)
    yield from _pool(engine, stats)


def lock_findings(engine: PostgresEngine) -> Iterator[checks.CheckMessage]:
    """Name sessions whose locks stop executors. A lock on a whole table is an error, because it stops all executors."""
    with_rows = [EXECUTORS, HEARTBEATS]
    names = _tables()
    rows = engine.db.query("lock_holders", names=names, with_rows=with_rows, seconds=LOCK_LONG_SECONDS)
    for lock, mode, pid, *session in rows:
        if pid is None:
            holder = _("a prepared transaction")
            advice = _("Find it in pg_prepared_xacts. Run COMMIT PREPARED or ROLLBACK PREPARED.")
        else:
            holder = _session(pid, *session)
            advice = _("End its transaction, or run: %(command)s") % {"command": f"SELECT pg_terminate_backend({pid});"}
        kind: type[checks.Warning | checks.Error] = checks.Warning
        if mode.startswith("Row") and lock == HEARTBEATS:
            kind = checks.Error
            text = _(
                "Backend %(backend)s: %(holder)s keeps rows of %(lock)s locked. "
                "These executors send no heartbeats, so that others run their tasks again."
            )
        elif mode.startswith("Row"):
            text = _(
                "Backend %(backend)s: %(holder)s keeps rows of %(lock)s locked. "
                "These executors work, but obey no commands."
            )
        elif lock in names:
            kind = checks.Error
            text = _(
                "Backend %(backend)s: %(holder)s keeps the table %(lock)s locked (%(mode)s). Executors wait for it."
            )
        else:
            text = _(
                "Backend %(backend)s: %(holder)s holds the %(lock)s. "
                "Until it releases the lock, executors cannot prune or add up counters."
            )
        yield kind(text % {"backend": engine.alias, "holder": holder, "lock": lock, "mode": mode}, hint=advice)


def _sequences(engine: PostgresEngine) -> Iterator[checks.CheckMessage]:
    """Name sequences that are behind their tables, as after logical replication, which copies rows only."""
    numbered = {
        model._meta.db_table: model
        for model in apps.get_app_config("jobqueue").get_models()
        if isinstance(model._meta.pk, AutoField)
    }
    for table, sequence, last in engine.db.query("sequences", names=sorted(numbered)):
        ids = numbered[table]._base_manager.using(engine.database).order_by("-pk").values_list("pk", flat=True)
        highest = ids.first()
        if highest is not None and highest > (last or 0):
            text = _(
                "Backend %(backend)s: the sequence of %(table)s is behind its rows (at %(last)s of %(highest)s), as "
                "after logical replication: inserts fail with 'duplicate key'."
            )
            values = {"backend": engine.alias, "table": table, "last": last or 0, "highest": highest}
            yield checks.Error(text % values, hint=SET_SEQUENCE.format(sequence=sequence, table=table))


def _tables() -> list[str]:
    return [model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()]


def _session(
    pid: int, role: str, name: str, state: str | None, open_seconds: float | None, idle_seconds: float | None
) -> str:
    """Describe a session. Only pg_read_all_stats sees the times of other roles."""
    parts = [name or _("no name"), state or _("state unknown")]
    if open_seconds is not None:
        parts.append(_("its transaction open for %(time)s") % {"time": duration(open_seconds)})
    if idle_seconds is not None:
        parts.append(_("its last statement %(time)s ago") % {"time": duration(idle_seconds)})
    text = _("session %(pid)s of role %(role)s (%(details)s)")
    return text % {"pid": pid, "role": role, "details": ", ".join(parts)}


def _durability(engine: PostgresEngine, settings: Mapping[str, str]) -> Iterator[checks.CheckMessage]:
    here = {"backend": engine.alias}
    unsafe = [name for name in SAFETY if settings.get(name) == "off"]
    for name in unsafe:
        level, danger = SAFETY[name]
        yield level(str(danger) % here, hint=f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")
    if not unsafe:
        text = _("Backend %(backend)s: committed data survives a crash (fsync, synchronous_commit).")
        yield checks.Info(text % here)
    for (name,) in engine.db.query("unlogged_tables", names=TABLES):
        text = _("Backend %(backend)s: %(table)s is UNLOGGED: a crash of the server empties it.")
        yield checks.Error(text % {**here, "table": name}, hint=f"ALTER TABLE {name} SET LOGGED;")


def _indexes(engine: PostgresEngine) -> Iterator[checks.CheckMessage]:
    """Name indexes that the planner does not use: a CREATE or REINDEX CONCURRENTLY did not end."""
    for index, table in engine.db.query("invalid_indexes", names=_tables()):
        text = _("Backend %(backend)s: the index %(index)s of %(table)s is INVALID: statements read the whole table.")
        values = {"backend": engine.alias, "index": index, "table": table}
        yield checks.Error(text % values, hint=f"REINDEX INDEX CONCURRENTLY {index};")


def _connections(settings: Mapping[str, str], stats: BackendStats) -> Iterator[checks.CheckMessage]:
    maximum, *reserved = (int(settings.get(name, 0)) for name in LIMITS)
    own = {str(title): int(settings.get(name, -1)) for name, title in OWN_LIMITS.items()}  # -1: none
    limits = {"max_connections": maximum - sum(reserved)} | {title: value for title, value in own.items() if value >= 0}
    tightest = min(limits, key=limits.__getitem__)
    usable, used = limits[tightest], int(settings["connections"])
    has_async = any(iscoroutinefunction(task.func) for task in registry.all().values())
    for_async = CONNECTIONS_FOR_ASYNC_TASKS if has_async else 0
    wanted = sum(executor.row.slots + CONNECTIONS_BESIDE_SLOTS + for_async for executor in stats.alive)
    values: dict[str, Any] = {
        "backend": stats.backend, "wanted": wanted, "usable": usable, "used": used, "limit": tightest,
        "beside": CONNECTIONS_BESIDE_SLOTS, "async": for_async,
    }  # fmt: skip
    if wanted > usable:
        text = (
            _(
                "Backend %(backend)s: executors may open %(wanted)s connections (each executor one per slot, "
                "%(beside)s more, %(async)s for async tasks); the server allows %(usable)s."
            )
            if for_async
            else _(
                "Backend %(backend)s: executors may open %(wanted)s connections (each executor one per slot, "
                "%(beside)s more); the server allows %(usable)s."
            )
        )
        advice = _("Raise %(limit)s, or give run_executors fewer --threads or --processes.")
        yield checks.Warning(text % values, hint=advice % values, obj=AdminTarget("executor"))
    elif used > 0.9 * usable:
        text = _("Backend %(backend)s: %(used)s of %(usable)s connections are in use.")
        advice = _("Raise %(limit)s, or close idle sessions: see pg_stat_activity.")
        yield checks.Warning(text % values, hint=advice % values)
    else:
        text = _("Backend %(backend)s: executors may open %(wanted)s of %(usable)s connections; %(used)s are in use.")
        yield checks.Info(text % values)


def _pool(engine: PostgresEngine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Compare Django's pool with the threads of running executors; settings do not contain their flags."""
    pool_max = pool_size(connections[engine.database].settings_dict["OPTIONS"].get("pool"))
    if pool_max is None:
        return
    for executor in stats.alive:
        wanted = executor.row.slots + CONNECTIONS_BESIDE_SLOTS
        if wanted > pool_max:
            text = _(
                "Backend %(backend)s: executor %(executor)s needs %(wanted)s connections, "
                "but its pool has at most %(pool)s."
            )
            values = {"backend": engine.alias, "executor": executor.row.name, "wanted": wanted, "pool": pool_max}
            option = f"DATABASES[{engine.database!r}]['OPTIONS']['pool'] = {{'max_size': {wanted}}}"
            advice = _("Set %(option)s, or give executors fewer --threads.") % {"option": option}
            yield checks.Warning(text % values, hint=advice, obj=AdminTarget("executor", pk=executor.row.pk))

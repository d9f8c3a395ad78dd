"""Bodies for tests of their connections and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error, connection, connections, transaction
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from jobqueue import task
from jobqueue.models import Task
from tests.executor.atomic_tasks import terminate_own_session
from tests.executor.harness import gates
from tests.executor.tasks import AT_ONCE, wait_later


def backend_pid() -> int:
    """Return the server's process of this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def session_of_database() -> int:
    return backend_pid()


@task
def session_of_another_wrapper() -> int:
    connection.close()
    del connections["default"]
    return backend_pid()


@task(atomic=True)
def session_of_database_atomically() -> int:
    return backend_pid()


@task
async def session_for_a_while(gate: str) -> int:
    pid = await sync_to_async(backend_pid)()
    await wait_later.func(gate)
    assert pid == await sync_to_async(backend_pid)()
    return pid


@task
async def use_for_a_while(gate: str) -> int:
    """Make one long call."""

    def call() -> int:
        gates[gate].pass_through()
        return backend_pid()

    return await sync_to_async(call)()


@task
async def count_children(number: int) -> int:
    await Task.objects.acount()
    return number


@task(max_attempts=1)
async def wait_for_a_child(number: int) -> Any:
    result: Any = await count_children.aenqueue(number)
    while not result.is_finished:
        await asyncio.sleep(0.01)
        await result.arefresh()
    return result.return_value


@task(max_attempts=1)
async def wait_for_a_sleeping_child(number: int) -> Any:
    """The child waits between two calls, too."""
    await Task.objects.acount()
    await asyncio.sleep(0.2)
    return await wait_for_a_child.func(number)


@task
async def count_for_a_parent(number: int) -> None:
    await Task.objects.acount()
    gates[f"child {number}"].open()


@task(max_attempts=1)
async def wait_for_a_child_within_a_call(number: int) -> int:
    """Block the body's thread, as a synchronous function that polls does."""
    await count_for_a_parent.aenqueue(number)
    await sync_to_async(gates[f"child {number}"].pass_through)()
    return number


@task
async def session_in_borrowed_threads() -> list[int]:
    borrowed = sync_to_async(backend_pid, thread_sensitive=False)
    return list(await asyncio.gather(asyncio.to_thread(backend_pid), borrowed()))


@task
def query(database: str) -> int:
    """Run a query. Return how many queries Django has logged."""
    Task.objects.using(database).exists()
    return len(connections[database].queries_log)


@task
async def query_later(database: str) -> int:
    await Task.objects.using(database).aexists()
    return await sync_to_async(lambda: len(connections[database].queries_log))()


def execute(sql: str) -> Callable[[], None]:
    def run() -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return run


def leave_a_block() -> None:
    transaction.atomic().__enter__()
    Task.objects.count()


def break_a_transaction() -> None:
    execute("BEGIN")()
    with suppress(Error):
        execute("SELECT 1 / 0")()


def swallow_in_a_block() -> None:
    with suppress(Error), transaction.atomic():
        with suppress(Error):
            execute("SELECT 1 / 0")()
        Task.objects.count()


def turn_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Task.objects.count()
    transaction.commit()


def execute_below(sql: str) -> Callable[[], None]:
    """Use the driver's connection directly, as some libraries do."""

    def run() -> None:
        connection.ensure_connection()
        connection.connection.execute(sql)

    return run


kept: list[Any] = []  # what a library caches, and never closes


def leave_a_cursor_below() -> None:
    connection.ensure_connection()
    cursor = connection.connection.cursor("left_behind", withhold=True)
    kept.append(cursor)
    cursor.execute("SELECT 1")


def leave_an_iterator() -> None:
    Task.objects.count()
    rows = Task.objects.iterator(chunk_size=1)
    kept.append(rows)
    next(rows)


def set_below(**attributes: Any) -> Callable[[], None]:
    def run() -> None:
        connection.ensure_connection()
        for name, value in attributes.items():
            setattr(connection.connection, name, value)

    return run


def set_on_wrapper() -> None:
    """Remember the tenant of the search_path, as a library for tenants does."""
    Task.objects.count()
    connections["default"].tenant = 7  # type: ignore[attr-defined]


MESSES: dict[str, Callable[[], Any]] = {
    "leaves a block": leave_a_block,
    "begins": execute("BEGIN; SELECT 1"),
    "breaks its transaction": break_a_transaction,
    "swallows": swallow_in_a_block,
    "autocommit": turn_autocommit_off,
    "closes": lambda: Task.objects.count() and connection.close(),  # type: ignore[func-returns-value]
    "closes below": lambda: Task.objects.count() and connection.connection.close(),
    "terminates": lambda: terminate_own_session("default"),
    "search_path": execute("SET search_path TO nowhere"),
    "search_path in a block": execute("DO $$ BEGIN SET search_path TO nowhere; END $$"),
    "setting of the site's": execute("SELECT set_config('site.tenant', '7', false)"),
    "statement_timeout": execute("set statement_timeout = 1234"),
    "time zone": execute("SET TIME ZONE 'Asia/Tokyo'"),
    "role": execute("SET ROLE pg_monitor"),
    "lock": execute("SELECT pg_advisory_lock(4711)"),
    "listen": execute("LISTEN jobqueue_tests"),
    "temp table": execute("CREATE TEMPORARY TABLE left_behind (n int)"),
    "prepare": execute("SELECT 1; PREPARE left_behind AS SELECT 1"),
    "cursor": execute("DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1"),
    "iterator": leave_an_iterator,
    "search_path below": execute_below("SET search_path TO nowhere"),
    "role below": execute_below("SET ROLE pg_monitor"),
    "cursor below": leave_a_cursor_below,
    "wrapper": set_on_wrapper,
    "isolation below": set_below(isolation_level=IsolationLevel.SERIALIZABLE),
    "read only below": set_below(read_only=True),
    "rows below": set_below(row_factory=dict_row),
}


@task(backoff=AT_ONCE)
def make_a_mess(mess: str) -> None:
    MESSES[mess]()


@task(backoff=AT_ONCE)
async def make_a_mess_later(mess: str) -> None:
    await sync_to_async(MESSES[mess])()


SESSION = """
    SELECT current_setting('search_path'), current_setting('statement_timeout'), current_setting('TimeZone'),
        current_setting('application_name'), current_user::text,
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        (SELECT count(*) FROM pg_listening_channels() AS channel WHERE channel = 'jobqueue_tests'),
        to_regclass('pg_temp.left_behind')::text,
        (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind'),
        (SELECT count(*) FROM pg_cursors WHERE is_holdable), coalesce(current_setting('site.tenant', true), '')
"""


@task
def look_at_session() -> list[Any]:
    """Return the state of the session that a task can change."""
    is_clean = connection.get_autocommit() and not connection.in_atomic_block
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        seen = [is_clean, hasattr(connection, "tenant"), len(connection.queries_log), *cursor.fetchone()]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')")
        return [*seen, *cursor.fetchone()]


@task
def look_at_connections_in_a_coroutine() -> str:
    """Let asgiref keep the wrappers of coroutines beside those of the thread."""

    async def look() -> str:
        return connections["default"].alias

    return asyncio.run(look())

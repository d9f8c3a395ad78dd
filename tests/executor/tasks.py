"""Bodies for the executor's tests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.db import Error, OperationalError, connection, connections, transaction
from django.utils import timezone, translation
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from jobqueue import Backoff, GiveUp, Retry, task
from jobqueue.engine import engine_for
from jobqueue.exceptions import Interrupted, TaskCancelled, TaskTimeout
from jobqueue.models import InboxMessage, Task
from tests.executor.harness import gates
from tests.models import Effect

left_behind: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references


def leave_behind(body: Coroutine[Any, Any, None]) -> None:
    child = asyncio.create_task(body)
    left_behind.add(child)
    child.add_done_callback(left_behind.discard)


AT_ONCE = Backoff(base=0.0, jitter=0.0)


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def add_later(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


# --- bodies that wait


@task
def wait_at(gate: str, who: Any = None) -> Any:
    gates[gate].pass_through(who)
    return who


@task
def wait_at_one_of(gate: str) -> int:
    """The first body waits at "gate 1", the second at "gate 2"."""
    gates[gate].arrive()
    number = len(gates[gate].arrived)
    gates[f"{gate} {number}"].pass_through()
    return number


@task
async def wait_later(gate: str, who: Any = None) -> Any:
    gates[gate].arrive(who)
    while not gates[gate].is_open.is_set():  # noqa: ASYNC110 - opened by another thread
        await asyncio.sleep(0.005)
    return who


@task
def note(gate: str, who: Any = None) -> None:
    gates[gate].arrive(who)


@task
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@task
async def sleep_later(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def enqueue_another(backend: str, count: int) -> None:
    if count:
        enqueue_another.using(backend=backend).enqueue(backend, count - 1)


# --- bodies that change what is around them

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def change_context(user: str) -> list[str]:
    found = [tenant.get(), translation.get_language(), timezone.get_current_timezone_name()]
    tenant.set(user)
    translation.activate("fr")
    timezone.activate("Asia/Tokyo")
    return found


@task
def change_the_context(user: str) -> list[str]:
    """Return what the body found."""
    return change_context(user)


@task
async def change_the_context_later(user: str) -> list[str]:
    return change_context(user)


@task
async def wait_in_a_child_later(gate: str, who: Any) -> Any:
    (returned,) = await asyncio.gather(wait_later.func(gate, who))
    return returned


@task
async def cancel_all_tasks() -> None:
    for other in asyncio.all_tasks():
        other.cancel()
    await asyncio.sleep(0)


@task
async def block_the_loop(gate: str) -> None:
    gates[gate].pass_through()


@task
async def cancel_all_tasks_and_wait() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    gates["cancelled"].arrive()
    await asyncio.gather(*others, return_exceptions=True)


@task
async def change_the_context_in_a_thread(user: str) -> list[str]:
    return await asyncio.get_running_loop().run_in_executor(None, change_context, user)


@task
async def set_a_failing_task_factory() -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a task factory of a body's")

    asyncio.get_running_loop().set_task_factory(fail)


# --- bodies that look around


@task(takes_context=True, max_attempts=3, backoff=AT_ONCE)
def fail_with_context(context: Any, gate: str) -> None:
    gates[gate].arrive(seen_in(context))
    raise_one("plain")


@task(takes_context=True, max_attempts=3, backoff=AT_ONCE)
async def fail_with_context_later(context: Any, gate: str) -> None:
    gates[gate].arrive(seen_in(context))
    raise_one("plain")


@task(takes_context=True)
def note_tick(context: Any, gate: str) -> None:
    gates[gate].arrive((context.schedule, context.scheduled_at))


def seen_in(context: Any) -> dict[str, Any]:
    return {
        "attempt": context.attempt,
        "idempotency_key": context.idempotency_key,
        "id": context.task_result.id,
        "backend": context.task_result.backend,
        "errors": len(context.task_result.errors),
    }


@task(takes_context=True)
def ask_whether_to_stop(context: Any, gate: str) -> str:
    gates[gate].arrive()
    try:
        while not context.cancelled:
            time.sleep(0.005)
    except TaskCancelled:
        return "stopped in order" if context.cancelled else "stopped in disorder"
    return "stopped in order"


@task(takes_context=True)
async def ask_whether_to_stop_later(context: Any, gate: str) -> str:
    gates[gate].arrive()
    try:
        while not context.cancelled:  # noqa: ASYNC110 - an attribute
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        return "stopped in order" if context.cancelled else "stopped in disorder"
    return "stopped in order"


@task(takes_context=True)
def show_task(context: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    result = context.task_result
    shown = {
        "status": result.status,
        "args": list(result.args),
        "kwargs": result.kwargs,
        "priority": result.task.priority,
        "queue_name": result.task.queue_name,
    }
    result.refresh()
    return shown | {"refreshed": result.status}


@task
def count_tasks() -> int:
    return Task.objects.count()


@task
async def count_tasks_later() -> int:
    return await Task.objects.acount()


# --- bodies that take too long


@task(backoff=AT_ONCE)
def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@task(backoff=AT_ONCE, max_attempts=1, timeout=0.1)
def spin_for_a_tenth(seconds: float) -> None:
    spin.func(seconds)


@task(backoff=AT_ONCE)
def swallow_exceptions(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(Exception):
            spin.func(seconds)


@task
def swallow_interruptions(gate: str, times: int) -> int:
    """Arrive at the gate, and once more for each interruption that it swallows."""
    for _ in range(times):
        gates[gate].arrive()
        with suppress(Interrupted):
            spin.func(60.0)
    gates[gate].arrive()
    return times


def sleep_on_the_server() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(3600)")


@task
def sleep_in_the_database() -> None:
    sleep_on_the_server()


@task
async def sleep_in_the_database_later() -> None:
    await sync_to_async(sleep_on_the_server)()


@task
def wrap_the_database_error() -> None:
    """Run the statement in another thread of ours, where the interruption does not arrive."""
    failures: list[Exception] = []
    connection.ensure_connection()
    mine = connection.connection

    def execute() -> None:
        try:
            mine.execute("SELECT pg_sleep(3600)")
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    try:
        thread.join()
    finally:
        thread.join()
        raise RuntimeError("the import failed") from failures[0]


@task(max_attempts=1)
def save_what_there_is() -> str:
    try:
        spin.func(60.0)
    except TaskTimeout:
        return "half of it"
    return "all of it"


@task(max_attempts=2)
def ask_for_more_time() -> None:
    try:
        spin.func(60.0)
    except TaskTimeout:
        raise Retry("the neighbours are busy", after=3600) from None


@task
async def leave_a_child(kind: str, gate: str) -> None:
    """Start a task of the event loop, and end before it does."""

    async def child() -> None:
        gates[gate].arrive("child")
        while not gates[gate].is_open.is_set():  # noqa: ASYNC110 - opened by another thread
            await asyncio.sleep(0.005)
        gates[gate].arrive("end of child")
        raise_one(kind)

    leave_behind(child())
    await asyncio.sleep(0)


@task
async def leave_a_thread_at_work(gate: str) -> None:
    def work() -> None:
        gates[gate].pass_through("thread")

    call = asyncio.ensure_future(sync_to_async(work)())
    while "thread" not in gates[gate].arrived:  # noqa: ASYNC110 - a call that no thread has begun is never made
        await asyncio.sleep(0.005)
    with suppress(TimeoutError):
        await asyncio.wait_for(call, 0.1)
    gates[gate].arrive("body")


@task
async def thread_of_calls(gate: str | None = None) -> int:
    """Call two functions at once, and later another one. Return the thread of each."""
    here = sync_to_async(threading.get_native_id)
    threads = {*await asyncio.gather(here(), here())}
    await asyncio.sleep(0)
    threads.add(await here())
    if gate is not None:
        await sync_to_async(gates[gate].pass_through)()
    (thread,) = threads
    return thread


@task
async def call_after_the_end(gate: str) -> None:
    """Leave a child that calls a function, with the ORM, when the body is over."""

    def call() -> None:
        gates[gate].arrive((threading.get_native_id(), Task.objects.exists()))

    async def child() -> None:
        while not gates[gate].is_open.is_set():  # noqa: ASYNC110 - opened by another thread
            await asyncio.sleep(0.005)
        await sync_to_async(call)()

    await sync_to_async(call)()
    leave_behind(child())


@task(backoff=AT_ONCE)
def spin_at(gate: str) -> None:
    gates[gate].arrive()
    spin.func(60.0)


@task
def return_all_the_same(gate: str) -> str:
    try:
        spin_at.func(gate)
    except TaskCancelled:
        return "done anyway"
    return "done"


@task
def fail_on_the_way_out(gate: str) -> None:
    try:
        spin_at.func(gate)
    finally:
        raise OSError("half written")


@task(backoff=AT_ONCE)
def fail_at(gate: str) -> None:
    gates[gate].pass_through()
    raise_one("plain")


# --- bodies that fail


class Weird(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no message for you")


class WeirdExit(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit(3)


class Temporary(Exception):
    pass


class Permanent(Temporary):
    pass


def in_a_circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def nested_groups() -> BaseException:
    group: Exception = ValueError("innermost")
    for depth in range(100):
        group = ExceptionGroup(f"level {depth}", [group, KeyError(depth)])
    return group


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("as asked"),
    "no message": lambda: ValueError(),
    "weird": Weird,
    "weird exit": WeirdExit,
    "circle": in_a_circle,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "groups": nested_groups,
    "huge": lambda: ValueError("x" * 50_000_000),
    "unstorable": lambda: ValueError("a\x00b\ud800c"),
    "forged": lambda: ValueError("\x1b]0;pwned\x07\x8513:59:59 CRITICAL executor.failed\u2028!"),
    "exit": lambda: SystemExit(3),
    "keyboard": lambda: KeyboardInterrupt(),
    "generator": lambda: GeneratorExit(),
    "stop": lambda: StopIteration("enough"),
    "cancelled": lambda: asyncio.CancelledError("by itself"),
    "temporary": Temporary,
    "permanent": Permanent,
}


def raise_one(kind: str) -> NoReturn:
    raise EXCEPTIONS[kind]()


class WithoutInit(Retry):
    """Lacks `after`, which Retry's __init__ sets."""

    def __init__(self) -> None:
        Exception.__init__(self, "as asked")


class Exits(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit("as asked")


BROKEN: dict[str, type[Exception]] = {"builtins.AttributeError": WithoutInit, "builtins.SystemExit": Exits}


@task(max_attempts=2, backoff=AT_ONCE)
def fail_with_a_broken_class(gate: str, path: str) -> None:
    gates[gate].arrive()
    raise BROKEN[path]


@task(max_attempts=2, backoff=AT_ONCE)
async def fail_with_a_broken_class_later(gate: str, path: str) -> None:
    gates[gate].arrive()
    raise BROKEN[path]


@task(max_attempts=2, backoff=AT_ONCE)
def fail(kind: str = "plain") -> None:
    raise_one(kind)


@task(max_attempts=2, backoff=AT_ONCE)
async def fail_later(kind: str = "plain") -> None:
    await asyncio.sleep(0)
    raise_one(kind)


@task(max_attempts=2, backoff=AT_ONCE)
async def fail_in_a_child(kind: str = "plain") -> None:
    async def child() -> None:
        raise_one(kind)

    await asyncio.gather(asyncio.create_task(child()))


@task(backoff=AT_ONCE)
def fail_by_default() -> None:
    raise_one("plain")


@task(backoff=AT_ONCE, retry_on=Temporary, give_up_on=Permanent)
def fail_selectively(kind: str) -> None:
    raise_one(kind)


@task(max_attempts=2, backoff=Backoff(base=3600.0))
def retry_after(seconds: float, gate: str, *, as_timedelta: bool = False) -> None:
    gates[gate].arrive(engine_for("default").now())
    raise Retry("later", after=timedelta(seconds=seconds) if as_timedelta else seconds)


@task
def retry_much_later() -> None:
    raise Retry("the shop is closed", after=3600)


@task(max_attempts=2, backoff=AT_ONCE, retry_on=Temporary)
def retry_anyway() -> None:
    raise Retry


@task(max_attempts=9)
def give_up() -> None:
    raise GiveUp("the address does not exist")


@task(max_attempts=3, backoff=Backoff(base=0.2, factor=2.0, jitter=0.5))
def fail_with_backoff(backend: str, gate: str) -> None:
    gates[gate].arrive(engine_for(backend).now())
    raise_one("plain")


# --- results


class Unreadable(dict[str, Any]):
    def items(self) -> NoReturn:
        raise RuntimeError("not readable")


RESULTS: dict[str, Callable[[], Any]] = {
    "object": object,
    "nan": lambda: float("nan"),
    "deep": lambda: json.loads("[" * 100 + "]" * 100),
    "long": lambda: 10**5000,
    "large": lambda: "x" * 2_000_000,
    "coroutine": lambda: asyncio.sleep(0),
    "unreadable": lambda: Unreadable(a=1),
    "unstorable": lambda: {"a\x00b": ["\ud800", "\x00"]},
    "tuple": lambda: (1, (2, 3)),
    "none": lambda: None,
}


class Endless(Sequence[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.001)
        return index


@task(max_attempts=1, timeout=0.2)
def give_without_end() -> Any:
    return Endless()


@task(max_attempts=1, timeout=0.2)
async def give_without_end_later() -> Any:
    return Endless()


@task(max_attempts=1, timeout=0.2, atomic=True)
def give_without_end_atomically() -> Any:
    return Endless()


@task(max_attempts=2, backoff=AT_ONCE)
def give(kind: str) -> Any:
    return RESULTS[kind]()


# --- connections


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


# --- bodies whose writes and completion are one


def write(kind: str, database: str = "default") -> None:
    Effect.objects.using(database).create(task_id=uuid4(), kind=kind, pid=0)


def written(database: str = "default") -> list[str]:
    return list(Effect.objects.using(database).order_by("pk").values_list("kind", flat=True))


@task
def write_one(kind: str) -> None:
    write(kind)


@task(atomic=True, max_attempts=2, backoff=AT_ONCE)
def write_atomically(ending: str, database: str = "default") -> Any:
    write(ending, database)
    return ATOMIC_ENDINGS[ending](database)


@task(atomic=True)
def add_atomically(a: int, b: int = 1) -> int:
    return a + b


@task(atomic=True)
def write_and_spin(gate: str) -> None:
    write("unfinished")
    spin_at.func(gate)


@task(atomic=True)
def write_and_wait(gate: str, kind: str) -> None:
    write(kind)
    gates[gate].pass_through()


@task(atomic=True, max_attempts=1)
def look_then_write(gate: str, ending: str) -> str:
    """Read, wait at the gate, write. The test's other transaction causes a conflict in between."""
    level = isolation_level()
    seen = Effect.objects.count()
    gates[gate].pass_through(seen)
    ISOLATION_ENDINGS[ending](seen)
    return level


def isolation_level() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        (level,) = cursor.fetchone()
    return str(level)


def meet_a_conflict(_: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001' USING MESSAGE = 'could not serialize access'; END $$")


ISOLATION_ENDINGS: dict[str, Callable[[int], Any]] = {
    "changes a row": lambda _: Effect.objects.filter(kind="shared").update(pid=0),
    "conflict": meet_a_conflict,
    "adds a row": lambda seen: write(f"saw {seen}"),
}


def break_a_deferred_constraint(database: str) -> None:
    InboxMessage.objects.using(database).create(task_id=uuid4(), body=None, sent_at="2020-01-01T00:00:00Z")


def swallow_a_database_error(database: str) -> None:
    with suppress(Error), connections[database].cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def fail_after_the_commit(database: str) -> None:
    transaction.on_commit(lambda: raise_one("plain"), using=database)


def fail_in_the_database_after_the_commit(database: str) -> None:
    def fail() -> None:
        raise OperationalError("the connection went away")

    transaction.on_commit(fail, using=database)


def terminate_own_session(database: str) -> None:
    with suppress(Error), connections[database].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


ATOMIC_ENDINGS: dict[str, Callable[[str], Any]] = {
    "fine": lambda _: 7,
    "error": lambda _: raise_one("plain"),
    "no result": lambda _: object(),
    "constraint": break_a_deferred_constraint,
    "swallowed": swallow_a_database_error,
    "rollback": lambda database: transaction.set_rollback(True, using=database),
    "hook": fail_after_the_commit,
    "database hook": fail_in_the_database_after_the_commit,
    "terminated": terminate_own_session,
    "closed": lambda database: connections[database].close(),
    "own commit": lambda database: transaction.commit(using=database),
    "autocommit": lambda database: transaction.set_autocommit(False, using=database),
    "leaves a block": lambda database: transaction.atomic(using=database).__enter__(),
}

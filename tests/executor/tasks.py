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

from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone, translation

from jobqueue import Backoff, GiveUp, Retry, task
from jobqueue.engine import engine_for
from jobqueue.exceptions import Interrupted, TaskCancelled, TaskTimeout
from jobqueue.models import Task
from tests.executor.harness import gates

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
    active = [tenant.get(), translation.get_language(), timezone.get_current_timezone_name()]
    tenant.set(user)
    translation.activate("fr")
    timezone.activate("Asia/Tokyo")
    return active


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
def report_progress(context: Any, gate: str) -> None:
    context.progress(1, 4, "first")
    gates[gate].pass_through()
    context.progress(2.5, 4, "x" * 300)


@task(takes_context=True)
async def report_progress_later(context: Any, gate: str) -> None:
    context.progress(1, 4, "first")
    gates[gate].pass_through()
    context.progress(2.5, 4, "x" * 300)


@task(takes_context=True)
def show_task(context: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    result = context.task_result
    values = {
        "status": result.status,
        "args": list(result.args),
        "kwargs": result.kwargs,
        "priority": result.task.priority,
        "queue_name": result.task.queue_name,
    }
    result.refresh()
    return values | {"refreshed": result.status}


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


@task(max_attempts=1)
def fail_with_values(number: int, token: str) -> None:
    raise ValueError(f"order {number}: {token} is refused")


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
    gates[gate].arrive(engine_for("default").db.now())
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
    gates[gate].arrive(engine_for(backend).db.now())
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

"""Unusual values, exceptions and bodies, for tests that run them on a real executor."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from django.db import connections
from hypothesis import strategies as st

from jobqueue import Backoff, Done, GiveUp, Retry, Send, Sleep, Spawn, Stale, Suspend, Yield, task
from jobqueue.exceptions import ClaimLost, ShuttingDown, TaskCancelled, TaskTimeout
from jobqueue.models import Task
from tests.executor.harness import gates

AT_ONCE = Backoff(base=0.0, jitter=0.0)
prepared_calls: dict[int, Callable[[], Any]] = {}  # what bodies call, in the process of the tests


@task(max_attempts=1)
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task(max_attempts=1)
def perform(number: int) -> Any:
    return prepared_calls[number]()


@task(max_attempts=1)
async def perform_later(number: int) -> Any:
    await asyncio.sleep(0)
    return prepared_calls[number]()


@task(max_attempts=1)
def leave_a_thread(gate: str, *, daemon: bool) -> int:
    """End before a thread that uses the database."""
    threading.Thread(target=work, args=(gate,), name="left-behind", daemon=daemon).start()
    gates[gate].wait_for(1)
    return 1


def work(gate: str) -> None:
    """Query the database, wait for the end of the body and for the test, then query again."""
    try:
        gates[gate].pass_through(Task.objects.count())
        gates[gate].arrive(Task.objects.count())
    finally:
        connections.close_all()


# --- deep recursion


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def fall() -> int:
    return 1 + fall()


def fall_and_catch() -> str:
    with suppress(RecursionError):
        fall()
    return "caught"


class FallingToString(Exception):
    def __str__(self) -> str:
        return str(fall())


class FallingMapping(dict[str, Any]):
    def items(self) -> Any:
        fall()


def raise_error(error: BaseException) -> NoReturn:
    raise error


circle: list[Any] = []
circle.append(circle)
DIVES: dict[str, Callable[[], Any]] = {
    "falls": fall,
    "catches": fall_and_catch,
    "message": lambda: raise_error(FallingToString()),
    "result": lambda: FallingMapping(a=1),
    "nested": lambda: nest(100_000),
    "circle": lambda: circle,
}


# --- values

# PostgreSQL stores larger floats as integers.
EXACT_FLOATS = st.floats(-1e15, 1e15)


class UnreadableMapping(dict[str, Any]):
    """A mapping that raises when it is read."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> NoReturn:
        raise self.error


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("not printable")


odd_text = st.text(st.characters(exclude_categories=()) | st.sampled_from("\x00\ud800\udfff\u2028'\"\\%$"))
plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | EXACT_FLOATS
    | st.text(st.characters(exclude_characters="\x00", codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\u00e9\u2028'%.$", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
odd_leaves = st.one_of(
    odd_text,
    EXACT_FLOATS,
    st.sampled_from([float("nan"), float("inf")]),
    st.binary(max_size=20),
    st.decimals(),
    st.datetimes(),
    st.uuids(),
    st.sets(st.integers(), max_size=2),
    st.sampled_from([2**63, object, Ellipsis]),
    st.sampled_from([4299, 4300, 5000]).map(lambda digits: -(10**digits)),
    st.builds(object),
    st.builds(Unprintable),
    st.sampled_from([0, 50, 63, 64, 65, 2000]).map(nest),
    st.just("x" * 1_100_000),
)
unreadable = st.sampled_from([ValueError, SystemExit, KeyboardInterrupt, RecursionError, asyncio.CancelledError]).map(
    lambda kind: UnreadableMapping(kind("not to be read"))
)
odd_keys = odd_text | st.integers() | st.floats() | st.none() | st.booleans() | st.binary(max_size=5)
odd_values = st.recursive(
    plain_json | odd_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(odd_keys, inner, max_size=3),
    max_leaves=6,
)
odd_results = odd_values | unreadable


# --- exceptions


def refuse_executors(what: str) -> None:
    """Raise in worker threads. The test's own thread may read, to create and print examples."""
    if threading.current_thread() is not threading.main_thread():
        raise SystemExit(f"no {what}")


class Meta(type):
    """A metaclass: its class has neither a name nor a module."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        refuse_executors("module")
        return __name__

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        refuse_executors("name")
        return "Nameless"


class Nameless(Exception, metaclass=Meta):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        refuse_executors("message")
        return "mute"

    __repr__ = __str__


class Masked(Exception):
    """Claims to be of another class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        refuse_executors("class")
        return Masked


class WithOddNotes(Exception):
    def __init__(self, notes: Any) -> None:
        super().__init__("has notes")
        self.__notes__ = notes


class Retried(Retry):
    """Lacks the attributes of a Retry."""

    def __init__(self) -> None:
        pass


def caused(length: int, *, by_context: bool) -> Exception:
    """Return an exception at the end of a long chain."""
    error = ValueError("first")
    for number in range(length):
        following = ValueError(f"number {number}")
        setattr(following, "__context__" if by_context else "__cause__", error)
        error = following
    return error


def grouped(depth: int) -> Exception:
    error: Exception = ValueError("innermost")
    for number in range(depth):
        error = ExceptionGroup(f"level {number}", [error])
    return error


odd_exceptions: st.SearchStrategy[BaseException] = st.one_of(
    odd_text.map(ValueError),
    st.builds(lambda first, second: KeyError(first, second), odd_results, odd_text),
    st.sampled_from([Mute, Nameless, Masked, Retried, Stale, GiveUp, FallingToString]).map(lambda kind: kind()),
    st.sampled_from([SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration]).map(
        lambda kind: kind(3)
    ),
    # Raised by the executor itself in bodies.
    st.sampled_from(
        [TaskCancelled, TaskTimeout, ShuttingDown, ClaimLost, asyncio.CancelledError, asyncio.TimeoutError]
    ).map(lambda kind: kind()),
    st.builds(caused, st.sampled_from([1, 100, 5000]), by_context=st.booleans()),
    st.sampled_from([1, 9, 500]).map(grouped),
    (odd_text | st.lists(odd_text, max_size=3) | st.just(5)).map(WithOddNotes),
    st.builds(lambda: ValueError("x" * 5_000_000)),
    st.builds(lambda after: Retry("later", after=after), st.floats(max_value=1e300, allow_nan=False)),
)


# --- what polls return


moments = st.datetimes(timezones=st.sampled_from([None, UTC])) | st.sampled_from(
    [datetime.min, datetime.max, datetime.max.replace(tzinfo=UTC), timedelta.max, timedelta.min, timedelta(0)]
)
receivers = odd_text | st.uuids() | st.none() | st.integers()
odd_actions = st.one_of(
    st.builds(Done, odd_results),
    st.builds(Sleep, moments | st.timedeltas() | odd_leaves),
    st.builds(Suspend, st.timedeltas() | st.none() | moments | odd_leaves),
    st.builds(Yield, odd_results),
    st.builds(Send, receivers, odd_results, dedupe_key=odd_text | st.none() | st.integers()),
    st.builds(Spawn, st.just(echo) | odd_leaves, odd_results),
    st.sampled_from([Done, Sleep, Suspend, Yield]),
)
odd_returns = odd_results | odd_actions | st.lists(odd_actions, max_size=3) | st.none()


# --- rows


odd_json = plain_json.map(json.dumps) | st.sampled_from(
    ["1" * 5000, "[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500, "1e6000", '"' + "x" * 100_000 + '"', "null"]
)
JSON_COLUMNS = ["args", "kwargs", "options", "metadata", "errors", "worker_ids", "inner_state"]
MOMENTS = ["rank", "enqueued_at", "started_at", "expires_at", "timeout_at", "last_attempted_at", "claimed_at"]
odd_moments = st.sampled_from(["1000-01-01 00:00:00+00", "9899-12-31 23:59:59.999999+00"])
NAMES = ["task_type", "queue_name", "key", "idempotency_key"]
odd_names = odd_text | st.sampled_from(
    ["", " ", "x" * 10_000, "\U0001f9e8" * 128, "\u202etxet\u2066", "a\x00b", "\ud800"]
)
odd_numbers = st.sampled_from([0, -1, 2**31 - 1, -(2**31)])
NUMBERS = ["priority", "max_attempts", "polls", "executor_losses", "unread_polls", "stale_polls"]
odd_columns = st.one_of(
    st.tuples(st.sampled_from(JSON_COLUMNS), odd_json, st.just("jsonb")),
    st.tuples(st.sampled_from(MOMENTS), odd_moments, st.just("timestamptz")),
    st.tuples(st.sampled_from(NUMBERS), odd_numbers.map(str), st.just("int")),
    # A row with minus two billion attempts would be retried two billion times.
    st.tuples(st.just("attempts"), st.sampled_from(["0", "-1", str(2**31 - 1)]), st.just("int")),
)
odd_message_columns = st.one_of(
    st.tuples(st.just("body"), odd_json, st.just("jsonb")),
    st.tuples(st.sampled_from(["sent_at", "consumed_at"]), odd_moments, st.just("timestamptz")),
    st.tuples(
        st.sampled_from(["child_status", "dedupe_key"]),
        odd_names | st.sampled_from(["READY", "FAILED"]),
        st.just("text"),
    ),
    st.tuples(st.just("sender_id"), st.just("ffffffff-ffff-ffff-ffff-ffffffffffff"), st.just("uuid")),
)

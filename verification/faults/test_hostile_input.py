"""
Test that no input makes a real executor end another task or crash.

A value makes the round trip or is refused, at enqueue() with nothing written, or as the FAILED end of its own task.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, DataError, IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jobqueue
from jobqueue import Done
from jobqueue.conf.compat import InvalidTask
from jobqueue.exceptions import InvalidArguments, InvalidResult
from jobqueue.models import InboxMessage, Task
from jobqueue.values import json as payload
from jobqueue.values.states import FINAL, Status
from tests.actor.stage import AsyncPuppet, Puppet, parts
from tests.executor.conftest import start  # noqa: F401 - a fixture
from tests.executor.harness import Running, Start, gates, on_postgresql
from tests.executor.tasks import add, count_tasks, fail
from tests.factories import TaskFactory
from tests.waiting import wait_until
from verification.faults import hostile_bodies
from verification.faults.hostile_bodies import echo, perform, perform_later, prepared_calls

pytestmark = [
    on_postgresql,
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),  # executors draw their jitter during the test
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]
SLOW_IS_FINE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=SLOW_IS_FINE, derandomize=True)
FEW_EXAMPLES = settings(EXAMPLES, max_examples=20)  # of half a second each
MAX_BYTES = 2**20  # MAX_PAYLOAD_BYTES
numbers = itertools.count()


@pytest.fixture
def running(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:  # noqa: F811
    """An executor that must live through the whole test, and still work at its end."""
    monkeypatch.setattr("jobqueue.executor.running.task_runner.MAX_STALE_POLLS", 2)
    running = start(threads=2, async_slots=2)
    before = threading.active_count()
    yield running
    after = add.enqueue_many([((number,), {}) for number in range(10)])
    assert {end_of(result.id).status for result in after} == {Status.SUCCESSFUL}
    assert running.loop.failure is None
    assert running.exit_code is None
    wait_until(lambda: not running.running_tasks, "an executor that holds nothing")
    wait_until(lambda: threading.active_count() <= before + 4, "the end of other threads")
    prepared_calls.clear()
    parts.clear()


def end_of(pk: Any) -> Task:
    """Wait for the end of a task without reading its payload."""
    rows = Task.objects.filter(pk=pk).only("status", "claim_number", "polls")
    return wait_until(lambda: rows.filter(status__in=FINAL).first(), f"the end of {pk}")


def stored(pk: Any, column: str) -> Any:
    return Task.objects.values_list(column, flat=True).get(pk=pk)


def prepared(call: Callable[[], Any]) -> int:
    """Keep a call for a body to perform. Return its number."""
    number = next(numbers)
    prepared_calls[number] = call
    return number


def part_of(poll: Callable[[Any], Any]) -> str:
    """Keep a poll for a Puppet. Return its name."""
    name = f"part-{next(numbers)}"
    parts[name] = poll
    return name


def attempted(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Give what a call returns, or raises."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - hostile values raise whatever they like
        return None, error


def is_clean(refusal: BaseException) -> bool:
    """Whether it is ours, or what the value itself raises, as it does anywhere."""
    return isinstance(refusal, InvalidArguments) or str(refusal) in ("not to be read", "not printable")


# --- what people enqueue


@EXAMPLES
@given(value=hostile_bodies.plain_json)
def test_json_makes_the_round_trip(running: Running, value: Any) -> None:
    result = echo.enqueue(value, named=value)

    assert end_of(result.id).status == Status.SUCCESSFUL
    assert stored(result.id, "args") == [value]
    assert stored(result.id, "return_value") == [[value], {"named": value}]


@EXAMPLES
@given(value=hostile_bodies.odd_results)
def test_other_arguments_come_as_json_or_are_refused(running: Running, value: Any) -> None:
    before = Task.objects.count()
    result, refusal = attempted(lambda: echo.enqueue(value))
    if refusal is not None:
        assert is_clean(refusal)
        assert Task.objects.count() == before
        return

    assert end_of(result.id).status == Status.SUCCESSFUL
    assert stored(result.id, "return_value") == [stored(result.id, "args"), {}]


@EXAMPLES
@given(
    names=st.lists(
        st.tuples(
            hostile_bodies.odd_text,
            hostile_bodies.odd_text,
            st.dictionaries(hostile_bodies.odd_text, hostile_bodies.odd_text, max_size=2),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_text_names_a_queue_or_is_refused(running: Running, names: list[tuple[str, str, Any]]) -> None:
    enqueued = []
    for queue, key, metadata in names:
        before = Task.objects.count()
        try:
            enqueued.append(echo.using(queue_name=queue, key=key, metadata=metadata).enqueue(key and queue))
        except (InvalidTask, InvalidArguments):
            assert Task.objects.count() == before

    for result in enqueued:
        assert end_of(result.id).status == Status.SUCCESSFUL
        assert result.task.queue_name == stored(result.id, "queue_name")


# --- what bodies do


BODIES = pytest.mark.parametrize("body", [perform, perform_later], ids=lambda body: body.name)


@BODIES
@EXAMPLES
@given(value=hostile_bodies.odd_results)
def test_result_is_stored_or_fails_its_task(running: Running, body: Any, value: Any) -> None:
    result = body.enqueue(prepared(lambda: value))
    beside = add.enqueue(1)

    row = end_of(result.id)

    text, refusal = attempted(lambda: payload.encode_result(value, max_bytes=MAX_BYTES))
    if refusal is not None:
        assert row.status == Status.FAILED
        (error,) = stored(result.id, "errors")
        assert not isinstance(refusal, InvalidResult) or error["message"] == str(refusal)
    else:
        assert row.status == Status.SUCCESSFUL
        assert stored(result.id, "return_value") == payload.decode(text)
    assert end_of(beside.id).status == Status.SUCCESSFUL


@BODIES
@EXAMPLES
@given(error=hostile_bodies.odd_exceptions)
def test_exception_fails_its_task_and_is_stored(running: Running, body: Any, error: BaseException) -> None:
    result = body.enqueue(prepared(partial(hostile_bodies.raise_error, error)))
    beside = add.enqueue(1)

    assert end_of(result.id).status == Status.FAILED

    (written,) = stored(result.id, "errors")
    assert written["exception_class_path"]
    assert len(written["message"]) < 2_200
    assert 0 < len(written["traceback"]) < 16_200
    assert end_of(beside.id).status == Status.SUCCESSFUL


@BODIES
@pytest.mark.parametrize("kind", hostile_bodies.DIVES)
def test_recursion_without_end_fails_its_task_alone(running: Running, body: Any, kind: str) -> None:
    result, beside = body.enqueue(prepared(hostile_bodies.DIVES[kind])), add.enqueue(1)

    row = end_of(result.id)

    if kind == "catches":
        assert (row.status, stored(result.id, "return_value")) == (Status.SUCCESSFUL, "caught")
    else:
        assert row.status == Status.FAILED
        (error,) = stored(result.id, "errors")
        assert "RecursionError" in str(error) or "nesting deeper than 64" in error["message"]
    assert end_of(beside.id).status == Status.SUCCESSFUL


@pytest.mark.parametrize("daemon", [True, False], ids=["daemon", "not a daemon"])
def test_thread_that_outlives_its_task_harms_no_other_task(running: Running, daemon: bool) -> None:
    result = hostile_bodies.leave_a_thread.enqueue("thread", daemon=daemon)

    assert end_of(result.id).status == Status.SUCCESSFUL
    beside = [count_tasks.enqueue() for _ in range(5)]
    assert {end_of(neighbour.id).status for neighbour in beside} == {Status.SUCCESSFUL}
    gates["thread"].open()
    gates["thread"].wait_for(2)


# --- actors


@pytest.mark.parametrize("actor", [Puppet, AsyncPuppet], ids=lambda actor: actor.__name__)
@EXAMPLES
@given(returned=hostile_bodies.odd_returns)
def test_what_a_poll_returns_is_performed_or_fails_it(running: Running, actor: Any, returned: Any) -> None:
    def poll(context: Any) -> Any:
        return Done("again") if context.polls else returned

    async def poll_later(context: Any) -> Any:
        return poll(context)

    pk = actor.using(max_attempts=1).enqueue(part_of(poll_later if actor is AsyncPuppet else poll)).id

    assert rested(pk) in (Status.SUCCESSFUL, Status.FAILED, Status.SUSPENDED)
    jobqueue.cancel(pk)
    assert end_of(pk).status in FINAL


def rested(pk: Any) -> str:
    """Wait until a task has ended, or waits."""
    rows = Task.objects.filter(pk=pk, claim_number__gt=0).exclude(status__in=[Status.READY, Status.RUNNING])
    return wait_until(lambda: rows.values_list("status", flat=True).first(), f"a rest of {pk}")


@EXAMPLES
@given(state=hostile_bodies.odd_results)
def test_state_is_there_in_the_next_poll_or_fails_this_one(running: Running, state: Any) -> None:
    seen: list[Any] = []

    def poll(context: Any) -> Any:
        if context.polls:
            seen.append(context.state)
            return Done()
        context.state = state
        return None

    row = end_of(Puppet.using(max_attempts=1).enqueue(part_of(poll)).id)

    if row.status == Status.SUCCESSFUL:
        assert len(seen) == 1
        assert payload.encode(Puppet.encode_state(state), where="state", max_bytes=MAX_BYTES)
    else:
        (error,) = stored(row.pk, "errors")
        assert error["message"]


@EXAMPLES
@given(bodies=st.lists(st.tuples(hostile_bodies.odd_results, hostile_bodies.odd_text | st.none()), max_size=4))
def test_message_arrives_once_or_is_refused(running: Running, bodies: list[tuple[Any, Any]]) -> None:
    arrived = []

    def poll(context: Any) -> Any:
        for message in context.inbox.take():
            arrived.append(message.body)
            if message.body == "the last":
                return Done(len(arrived))
        return jobqueue.Suspend()

    pk = UUID(Puppet.using(max_attempts=1).enqueue(part_of(poll)).id)
    sent, keys = 0, set()
    for body, dedupe_key in bodies:
        _, refusal = attempted(partial(jobqueue.send, pk, body, dedupe_key=dedupe_key))
        if refusal is not None:
            assert is_clean(refusal)
            continue
        sent += dedupe_key is None or dedupe_key not in keys
        keys.add(dedupe_key)
    jobqueue.send(pk, "the last")

    row = end_of(pk)

    assert (row.status, stored(pk, "return_value")) == (Status.SUCCESSFUL, sent + 1)
    assert not InboxMessage.objects.filter(task_id=pk, consumed_at=None).exists()


# --- rows made by hand


def changed_by_hand(table: str, pk: Any, column: str, value: str, kind: str) -> bool:
    """Write into a row; returns whether the driver and the database take that."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = %s::{kind} WHERE id = %s", [value, pk])
    except (DataError, IntegrityError, UnicodeEncodeError):
        return False
    return True


def begun(count: int, position: int, body: Any) -> list[Any]:
    """Enqueue that many tasks, one of them of another kind, at this place."""
    results = [add.enqueue(number) for number in range(count)]
    if body is not add:
        results[position] = body.using(max_attempts=1).enqueue("plain" if body is fail else part_of(lambda _: Done()))
    return results


def assert_only_one_is_hurt(results: list[Any], position: int) -> None:
    others = [result for number, result in enumerate(results) if number != position]
    assert {end_of(result.id).status for result in others} == {Status.SUCCESSFUL}
    hurt = Task.objects.filter(pk=results[position].id, status__in=[*FINAL, Status.AWAITING_CODE])
    wait_until(hurt.exists, "the end of the one, or its wait for code")


@settings(EXAMPLES, max_examples=100)
@given(
    odd=st.lists(hostile_bodies.odd_columns, min_size=1, max_size=4, unique_by=lambda column: column[0]),
    position=st.integers(0, 4),
    body=st.sampled_from([add, fail, Puppet.task]),
)
def test_poison_row_in_a_claimed_batch_fails_alone(
    running: Running, odd: list[tuple[str, str, str]], position: int, body: Any
) -> None:
    with transaction.atomic():
        results = begun(5, position, body)
        for column in odd:
            changed_by_hand("jobqueue_task", results[position].id, *column)

    assert_only_one_is_hurt(results, position)


@FEW_EXAMPLES
@given(
    names=st.lists(st.tuples(st.sampled_from(hostile_bodies.NAMES), hostile_bodies.odd_names), min_size=1, max_size=4)
)
def test_any_text_as_a_name_in_a_row_harms_no_other_task(running: Running, names: list[tuple[str, str]]) -> None:
    with transaction.atomic():
        results = [add.enqueue(number) for number in range(len(names) + 2)]
        for result, (column, name) in zip(results, names, strict=False):
            changed_by_hand("jobqueue_task", result.id, column, name, "text")

    for result in results:
        row = Task.objects.get(pk=result.id)
        if row.task_type == add.task_type:
            assert end_of(row.pk).status == Status.SUCCESSFUL
        else:
            wait_until(
                Task.objects.filter(pk=row.pk, status=Status.AWAITING_CODE).first, "an unknown task to wait for code"
            )
            jobqueue.cancel(row.pk)


@FEW_EXAMPLES
@given(
    task_type=hostile_bodies.odd_names | st.just(add.task_type),
    queue=hostile_bodies.odd_names,
    key=hostile_bodies.odd_names,
)
def test_any_text_as_a_name_in_sql_is_refused_or_harmless(
    running: Running, task_type: str, queue: str, key: str
) -> None:
    before = Task.objects.count()
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT jobqueue_create_task(NULL, %s, args => '[1]', queue_name => %s, key => %s)",
                [task_type, queue, key],
            )
            (pk,) = cursor.fetchone()
    except (DatabaseError, UnicodeEncodeError):
        assert Task.objects.count() == before
        return

    if task_type == add.task_type:
        assert end_of(pk).status == Status.SUCCESSFUL
        assert (stored(pk, "queue_name"), stored(pk, "key")) == (queue, key)
    else:
        wait_until(Task.objects.filter(pk=pk, status=Status.AWAITING_CODE).first, "its wait for code")
        jobqueue.cancel(pk)


@EXAMPLES
@given(
    odd=st.lists(hostile_bodies.odd_message_columns, min_size=1, max_size=2),
    position=st.integers(0, 2),
    takes=st.booleans(),
)
def test_poison_message_harms_its_receiver_alone(
    running: Running, odd: list[tuple[str, str, str]], position: int, takes: bool
) -> None:
    """One that reads it has failed, or has read it; one that does not read its messages may end well."""
    name = part_of(lambda context: Done(len(context.inbox.take() if takes else ())))
    with transaction.atomic():
        results = [Puppet.using(max_attempts=1).enqueue(name) for _ in range(3)]
        for result in results:
            jobqueue.send(result.id, "good")
        message = jobqueue.send(results[position].id, "bad")
        for column in odd:
            changed_by_hand("jobqueue_inboxmessage", message, *column)

    assert_only_one_is_hurt(results, position)


@pytest.mark.parametrize("moment", ["1000-01-01 00:00:00+00", "9899-12-31 23:59:59+00"])
@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.SUSPENDED])
def test_any_wake_at_wakes_its_task_or_waits_and_delays_no_other(running: Running, status: Status, moment: str) -> None:
    row = TaskFactory.create(task_type=add.task_type, args=[1], status=status, priority=100)
    assert changed_by_hand("jobqueue_task", row.pk, "wake_at", moment, "timestamptz")

    assert end_of(add.enqueue(1).id).status == Status.SUCCESSFUL

    if moment.startswith("1000"):
        assert end_of(row.pk).status == Status.SUCCESSFUL
    else:
        assert stored(row.pk, "status") == status
        jobqueue.cancel(row.pk)

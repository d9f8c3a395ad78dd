"""A commit, a verb or a lock takes longer than the executor's timeout. Other tasks go on, and no outcome is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from jobqueue import Actor, Done, PollContext, Send, Spawn, Suspend, task
from jobqueue.api.messages import send
from jobqueue.executor.health import status
from jobqueue.models import Heartbeat, InboxMessage, Task
from jobqueue.values.states import FINAL, Status
from tests.executor.harness import Running, Start, on_postgresql, row_of, wait_for_status
from tests.factories import TaskFactory, ago
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = [on_postgresql, pytest.mark.slow]

TIMEOUT = 3.0  # HEARTBEAT_TIMEOUT: a statement of the loop may take 2 s
FOR_EVER = 600.0


@task
def quick(number: int) -> int:
    return number


@task
def heavy(number: int) -> int:
    return number


@task(max_attempts=1)
def unspawned() -> None:
    pass


class Spawner(Actor, max_attempts=1):
    """Spawns a child with a key that another session may hold."""

    def poll(self, context: PollContext[Any], key: str = "") -> Any:
        if context.polls:
            return Done()
        return [Spawn(unspawned.using(key=key)), Suspend()]


class Sender(Actor, max_attempts=1):
    def poll(self, context: PollContext[Any], to: str = "", key: str = "") -> Any:
        return [Send(to, "hello", dedupe_key=key), Done()]


class Family(Actor, max_attempts=1):
    """Ends its children when a message comes."""

    def poll(self, context: PollContext[Any]) -> Any:
        if context.inbox.take():
            return Done(cancel_children=True)
        return Suspend()


@contextmanager
def slowed(table: str, event: str, condition: str, seconds: float = FOR_EVER) -> Iterator[None]:
    """Let the server sleep before it writes certain rows of a table."""
    returned = "OLD" if event == "DELETE" else "NEW"
    body = f"PERFORM pg_sleep({seconds}); RETURN {returned};"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE FUNCTION slow_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
        cursor.execute(
            f"CREATE TRIGGER slow_down BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition})"
            " EXECUTE FUNCTION slow_down()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION slow_down() CASCADE")


def success_of(function: Any) -> str:
    return f"NEW.task_type = '{function.task_type}' AND NEW.status = 'SUCCESSFUL'"


def expect_progress(running: Running) -> None:
    """Expect that tasks which come now end soon."""
    for number in range(3):
        wait_for_status(quick.enqueue(number), Status.SUCCESSFUL)


def test_outcome_that_never_fits_fails_alone(start: Start, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    with slowed("jobqueue_task", "UPDATE", success_of(heavy)):
        result = heavy.enqueue(1)
        results = quick.enqueue_many([((number,), {}) for number in range(20)])
        running = start(threads=4)

        for quick_result in results:
            wait_for_status(quick_result, Status.SUCCESSFUL)
        expect_progress(running)
        row = wait_for_status(result, Status.FAILED)

    (error,) = row.errors
    assert "its commit alone took" in error["message"]
    assert "timeout" in error["message"]
    assert row.claim_number == 1
    assert any(line.startswith("task.commit_failed") and str(result.id) in line for line in caplog.messages)
    assert not [line for line in caplog.messages if line.startswith("database.unreachable")]


def test_outcome_that_cannot_even_fail_is_named_by_the_probes(
    start: Start, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "STUCK_TIMEOUTS", 1)
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    with slowed("jobqueue_task", "UPDATE", f"NEW.task_type = '{heavy.task_type}' AND OLD.status = 'RUNNING'"):
        result = heavy.enqueue(1)
        running = start(threads=2)
        health = running.process.health

        wait_until(lambda: any("cannot be committed" in problem.what for problem in health.status().unready))
        expect_progress(running)
        wait_until(lambda: any("cannot be committed" in problem.what for problem in health.status().stalled))
        wait_until(Heartbeat.objects.filter(problem__contains="Outcomes that cannot be committed: 1.").exists)
        assert not any("unreachable" in problem.what for problem in health.status().unready)
        assert row_of(result).status == Status.RUNNING

    wait_until(lambda: row_of(result).status in FINAL)
    expect_progress(running)
    wait_until(lambda: health.status().stalled == ())
    wait_until(Heartbeat.objects.filter(problem=None).exists)


def test_outcome_of_a_slow_database_is_not_given_up(start: Start, options: Options) -> None:
    """No heartbeat is written while the commit waits, so that its values are not to blame."""
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    with slowed("jobqueue_heartbeat", "UPDATE", "TRUE"), slowed_too("jobqueue_task", success_of(heavy)):
        result = heavy.enqueue(1)
        running = start(threads=2)
        batches = running.loop.running_tasks.batches
        wait_until(lambda: (batches.stuck() or (0, 0.0))[1] > 4 * TIMEOUT)

    row = wait_for_status(result, Status.SUCCESSFUL)
    assert row.errors == []


@contextmanager
def slowed_too(table: str, condition: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TRIGGER slow_down BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({condition})"
            " EXECUTE FUNCTION slow_down()"
        )
    yield


def test_children_of_a_family_that_takes_too_long_are_cancelled_in_parts(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    result = Family.enqueue()
    running = start(threads=2)
    wait_for_status(result, Status.SUSPENDED)
    TaskFactory.create_batch(60, scheduled=True, task_type=heavy.task_type, parent_id=result.id)
    with slowed("jobqueue_task", "UPDATE", "NEW.status = 'CANCELLED'", 0.1):
        send(result.id, "end")

        expect_progress(running)
        row = wait_for_status(result, Status.SUCCESSFUL)

    assert Task.objects.filter(parent_id=row.pk, status=Status.CANCELLED).count() == 60
    assert row.polls == 2
    assert not InboxMessage.objects.filter(task_id=result.id).exists()


# --- locks of other sessions


@contextmanager
def open_transaction(*statements: Any) -> Iterator[Any]:
    """Let another session do something and leave its transaction open."""
    opened = connection.copy()
    try:
        with opened.cursor() as cursor:
            opened.set_autocommit(False)
            for statement, parameters in statements:
                cursor.execute(statement, parameters)
            yield opened
            opened.rollback()
    finally:
        opened.close()


ENQUEUE_WITH_KEY = (
    "INSERT INTO jobqueue_task SELECT (jsonb_populate_record(task, jsonb_build_object('id', gen_random_uuid(), 'key', "
    "'taken', 'status', 'READY', 'finished_at', NULL, 'executor_id', NULL))).* FROM jobqueue_task AS task LIMIT 1"
)


def test_spawn_with_a_key_of_an_open_transaction_stops_no_other_task(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    TaskFactory.create(successful=True)
    running = start(threads=2)
    with open_transaction((ENQUEUE_WITH_KEY, [])):
        result = Spawner.enqueue(key="taken")
        wait_until(lambda: running.loop.running_tasks.batches.waiting() is not None)

        expect_progress(running)
        wait_until(Heartbeat.objects.filter(problem__contains="Outcomes that wait for locks of other sessions").exists)
        assert row_of(result).status == Status.RUNNING

    row = wait_for_status(result, Status.SUCCESSFUL)
    assert Task.objects.get(parent_id=row.pk).task_type == unspawned.task_type


def test_send_with_a_dedupe_key_of_an_open_transaction_stops_no_other_task(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    running = start(threads=2)
    receiver = Family.enqueue()
    wait_for_status(receiver, Status.SUSPENDED)
    insert = (
        "INSERT INTO jobqueue_inboxmessage (task_id, body, dedupe_key, sent_at) VALUES (%s, '1', 'once', now())",
        [receiver.id],
    )
    with open_transaction(insert):
        result = Sender.enqueue(to=str(receiver.id), key="once")
        wait_until(lambda: running.loop.running_tasks.batches.waiting() is not None)

        expect_progress(running)
        assert row_of(result).status == Status.RUNNING

    wait_for_status(result, Status.SUCCESSFUL)
    wait_for_status(receiver, Status.SUCCESSFUL)


def test_many_outcomes_that_wait_for_one_lock_stop_no_other_task(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    TaskFactory.create(successful=True)
    running = start(threads=2)
    with open_transaction((ENQUEUE_WITH_KEY, [])):
        Spawner.enqueue_many([((), {"key": "taken"})] * 50)
        wait_until(lambda: (running.loop.running_tasks.batches.waiting() or (0,))[0] == 50)

        expect_progress(running)

    wait_until(lambda: not Task.objects.live().filter(task_type__endswith="Spawner").exists())


# --- maintenance


def test_prune_that_takes_too_long_goes_on_with_fewer_tasks(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT, RETENTION={"SUCCESSFUL": 20})
    TaskFactory.create_batch(300, successful=True, task_type=heavy.task_type)
    with slowed("jobqueue_task", "DELETE", f"OLD.task_type = '{heavy.task_type}'", 0.02):
        running = start(threads=2, prepare=prune_at_once)

        expect_progress(running)
        wait_until(lambda: not Task.objects.filter(task_type=heavy.task_type).exists())


def test_ended_task_with_too_many_messages_is_pruned(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT, RETENTION={"SUCCESSFUL": 20})
    huge = TaskFactory.create(successful=True, task_type=heavy.task_type)
    rows = [InboxMessage(task_id=huge.pk, body=1, sent_at=ago(40)) for _ in range(300)]
    InboxMessage.objects.bulk_create(rows)
    with slowed("jobqueue_inboxmessage", "DELETE", "TRUE", 0.02):
        running = start(threads=2, prepare=prune_at_once)

        expect_progress(running)
        wait_until(lambda: not Task.objects.filter(pk=huge.pk).exists())


def prune_at_once(running: Running) -> None:
    running.loop._maintenance._prune_at = 0.0


def test_verb_that_always_fails_stops_neither_the_others_nor_the_loop(
    start: Start, options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    TaskFactory.create(status=Status.SCHEDULED, wake_at=ago(1), task_type=quick.task_type, args=[1])
    with slowed("jobqueue_counter", "INSERT", "TRUE"), slowed_too("jobqueue_counterperiod", "TRUE"):
        running = start(threads=2)
        expect_progress(running)
        wait_until(lambda: any(line.startswith("verb.deferred verb=aggregate_counters") for line in caplog.messages))
        expect_progress(running)

    wait_until(lambda: Task.objects.successful().count() == 7)


# --- ten times what a bound allows


@task(max_attempts=1)
def large(characters: int) -> str:
    return "x" * characters


class Swarm(Actor, max_attempts=1):
    """Spawns more children in one poll than a commit has time for."""

    def poll(self, context: PollContext[Any], number: int = 0) -> Any:
        return [*(Spawn(unspawned.using(queue_name="unserved")) for _ in range(number)), Done()]


def test_poll_that_spawns_too_many_tasks_fails_and_says_why(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    with slowed("jobqueue_task", "INSERT", "NEW.queue_name = 'unserved'", 0.001):
        result = Swarm.enqueue(number=6000)
        running = start(threads=2, queues=["default"])

        expect_progress(running)
        row = wait_for_status(result, Status.FAILED)

    assert "spawns 6000 tasks" in row.errors[-1]["message"]
    assert not Task.objects.filter(parent_id=row.pk).exists()


def test_inbox_that_is_read_too_slowly_stops_no_other_actor(start: Start, options: Options) -> None:
    """The messages are read in smaller parts, until the actor has taken them all."""
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    running = start(threads=2)
    receiver = Family.enqueue()
    row = wait_for_status(receiver, Status.SUSPENDED)
    engine: Any = running.process.engine
    read = engine.messages.read_messages

    def read_slowly(ids: Any, limit: int) -> Any:
        if row.pk in ids and limit > 100:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(600)")
        return read(ids, limit)

    engine.messages.read_messages = read_slowly
    try:
        send(receiver.id, "end")
        expect_progress(running)
        wait_for_status(receiver, Status.SUCCESSFUL)
    finally:
        engine.messages.read_messages = read
    expect_progress(running)

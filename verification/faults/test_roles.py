"""Timeouts and connection limits of the role that executors log in as, changed while executors run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, Process, wait_for_end
from tests.acceptance.tasks import book, tiny, work
from tests.acceptance.test_probes import HEALTH, OK, probe, wait_for_answer
from tests.actors import ByHand, Fibonacci
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
ROLE = "jobqueue_role"
IDLED = "terminating connection due to idle-in-transaction timeout"


class Role:
    """The role that the executors of a test log in as."""

    def __init__(self, fleet: Fleet, environment: dict[str, str]) -> None:
        self._fleet = fleet
        self._environment = {"DATABASE_URL": re.sub("//.*?@", f"//{ROLE}:pw@", environment["DATABASE_URL"])}

    def launch(self, *flags: str, **options: Any) -> Process:
        return self._fleet.launch(*flags, environment=self._environment, **options)

    def start(self, *flags: str, **options: Any) -> Process:
        return self.launch(*flags, **options).wait_until_ready()

    def alter(self, *changes: str) -> None:
        """Change the role, and end its sessions: they keep the settings of their start."""
        with connection.cursor() as cursor:
            for change in changes:
                cursor.execute(f"ALTER ROLE {ROLE} {change}")
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE])

    def waits(self) -> bool:
        """Whether a session of the role waits for a lock."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction would keep its first snapshot
            cursor.execute("SELECT 1 FROM pg_stat_activity WHERE usename = %s AND wait_event_type = 'Lock'", [ROLE])
            return cursor.fetchone() is not None


@pytest.fixture
def role(fleet: Fleet, process_environment: dict[str, str]) -> Iterator[Role]:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'pw'")
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
        cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
    yield Role(fleet, process_environment)
    fleet.destroy()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {ROLE}")
        cursor.execute(f"DROP ROLE {ROLE}")


def lock_until_timeout(role: Role, pk: str, then: Callable[[], None] = lambda: None) -> None:
    """Lock a running task's row until the executor gives up its commit."""
    wait_until(lambda: Task.objects.running().filter(pk=pk).exists(), "a running task")
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=pk)
        wait_until(role.waits, "an executor to wait for the row")
        then()
        wait_until(lambda: not role.waits(), "the timeout of its commit")


@pytest.mark.parametrize(("setting", "body"), [("statement_timeout", ByHand), ("lock_timeout", book)])
def test_row_locked_beyond_timeout_costs_no_attempt(role: Role, setting: str, body: Any) -> None:
    process = role.start("--threads", "2")
    role.alter(f"SET {setting} = '2s'")

    lock_until_timeout(role, body.using(max_attempts=1).enqueue(2.0).id)

    assert wait_for_end() == {"SUCCESSFUL": 1}
    assert (Task.objects.get().attempts, Effect.objects.count()) == (0, 1)
    assert process.stop() == 0
    assert process.output.find(r"counted=no .*error=Stale: The task's row could not be locked in time: canceling")


def test_deadlock_costs_no_attempt(role: Role) -> None:
    process = role.start("--threads", "2")
    role.alter("SET deadlock_timeout = '8s'")  # the executor checks once, after we have our lock
    result = book.using(max_attempts=1).enqueue(2.0)

    def wait_for_its_lock() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL deadlock_timeout = '1min'")  # the executor is the victim
            cursor.execute("LOCK TABLE tests_effect")

    lock_until_timeout(role, result.id, wait_for_its_lock)

    assert wait_for_end() == {"SUCCESSFUL": 1}
    row = Task.objects.get()
    assert (row.attempts, row.errors, Effect.objects.count()) == (0, [], 1)
    assert process.stop() == 0
    assert process.output.find(r"counted=no .* deadlock detected")


def test_short_timeouts_of_role_do_not_apply_to_executors(role: Role) -> None:
    process = role.start("--threads", "4", "-v", "0", heartbeat_timeout=6)
    tiny.enqueue_many([((number,), {}) for number in range(5_000)])
    role.alter("SET statement_timeout = '10ms'", "SET idle_in_transaction_session_timeout = '10ms'")
    parents = [Fibonacci.using(max_attempts=1).enqueue(6) for _ in range(10)]

    wait_for_end()

    assert not Task.objects.exclude(status="SUCCESSFUL", attempts=0, executor_losses=0).exists()
    assert {Task.objects.get(pk=parent.id).return_value for parent in parents} == {8}
    assert process.stop() == 0


def test_body_idle_in_transaction_fails_alone(role: Role) -> None:
    process = role.start("--threads", "2")
    role.alter("SET idle_in_transaction_session_timeout = '300ms'")
    idler, quick = book.using(max_attempts=2).enqueue(0.6), book.enqueue()

    assert wait_for_end() == {"SUCCESSFUL": 1, "FAILED": 1}
    row = Task.objects.get(pk=idler.id)
    assert (row.attempts, [error["message"] for error in row.errors]) == (2, [IDLED] * 2)
    assert [str(effect.task_id) for effect in Effect.objects.all()] == [quick.id]
    assert process.stop() == 0


def test_executor_without_free_connection_waits_for_one(role: Role) -> None:
    process = role.start(*HEALTH, "--threads", "4", heartbeat_timeout=2)
    wait_for_answer(process, "/readyz", 200)
    running = work.enqueue(0.5)
    wait_until(Effect.objects.exists, "a running task")
    role.alter("CONNECTION LIMIT 0")
    book.enqueue_many([((), {})] * 10)
    wait_for_answer(process, "/readyz", 503, "The database is unreachable.")
    process.output.wait_for(r"executor\.fenced")
    assert probe(process, "/livez") == OK

    role.alter("CONNECTION LIMIT -1")

    assert wait_for_end() == {"SUCCESSFUL": 11}
    wait_for_answer(process, "/readyz", 200)
    assert Task.objects.get(pk=running.id).executor_losses == 0
    assert set(Task.objects.values_list("attempts", flat=True)) == {0}
    assert len(process.output.find(r"database\.(unreachable|reconnected)")) == 2
    assert process.stop() == 0


def test_executor_does_not_start_on_the_heartbeats_connection_alone(role: Role) -> None:
    role.alter("CONNECTION LIMIT 1")
    process = role.launch("--connect-timeout", "5s")

    assert process.wait() == 69
    process.output.wait_for(
        r"ERROR .*The heartbeat has the only connection that the server gives \(.*too many connections for role"
    )
    assert not process.output.find("^ready")


def test_executor_does_with_three_connections(role: Role) -> None:
    role.alter("CONNECTION LIMIT 3")
    process = role.start("--threads", "1", "--async-slots", "1")
    tiny.enqueue_many([((number,), {}) for number in range(10)])

    assert wait_for_end() == {"SUCCESSFUL": 10}
    assert process.stop() == 0


def test_listener_leaves_last_connections_to_loop_and_heartbeat(role: Role) -> None:
    """Two connections are enough, regardless of the order in which the threads connect."""
    process = role.start(*HEALTH, "--threads", "4", "--poll-interval", "0.2s", heartbeat_timeout=3)
    for _ in range(3):
        role.alter("CONNECTION LIMIT 2")
        seen = process.row.heartbeat.at
        wait_until(lambda seen=seen: process.row.heartbeat.at > seen, "a beat")  # type: ignore[misc]
        tiny.enqueue()
        assert set(wait_for_end()) == {"SUCCESSFUL"}
        wait_for_answer(process, "/readyz", 200)
    assert process.stop() == 0

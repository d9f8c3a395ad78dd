"""Sites with a stricter level of isolation than READ COMMITTED."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction
from psycopg import IsolationLevel

from jobqueue import Done
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.actor.stage import Puppet, parts
from tests.executor import atomic_tasks
from tests.executor.harness import Start, gates, on_postgresql, row_of, wait_for_status
from tests.models import Effect

pytestmark = on_postgresql
LEVELS = {"repeatable read": IsolationLevel.REPEATABLE_READ, "serializable": IsolationLevel.SERIALIZABLE}


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set OPTIONS["isolation_level"] of the site, for every connection that is opened from now on."""

    def isolation(level: str) -> None:
        connection.close()
        monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "isolation_level", LEVELS[level])

    yield isolation
    connection.close()


@pytest.mark.parametrize("level", LEVELS)
def test_an_atomic_body_runs_at_the_sites_level(start: Start, isolation: Callable[[str], None], level: str) -> None:
    isolation(level)
    gates["look"].open()
    result = atomic_tasks.look_then_write.enqueue("look", "adds a row")
    start()

    row = wait_for_status(result, Status.SUCCESSFUL)

    assert (row.return_value, row.claim_number, atomic_tasks.written()) == (level, 1, ["saw 0"])


def test_a_body_that_meets_a_newer_row_runs_again_uncounted(start: Start, isolation: Callable[[str], None]) -> None:
    isolation("repeatable read")
    shared = Effect.objects.create(task_id=uuid4(), kind="shared", pid=1)
    result = atomic_tasks.look_then_write.enqueue("look", "changes a row")
    start()
    gates["look"].wait_for()
    Effect.objects.update(pid=2)

    gates["look"].open()
    row = wait_for_status(result, Status.SUCCESSFUL)

    assert (row.attempts, row.errors, row.claim_number) == (0, [], 2)
    assert Effect.objects.get(pk=shared.pk).pid == 0


def test_an_outcome_that_meets_a_newer_row_runs_again_uncounted(start: Start, isolation: Callable[[str], None]) -> None:
    isolation("repeatable read")
    result = atomic_tasks.look_then_write.enqueue("look", "adds a row")
    start()
    gates["look"].wait_for()
    Task.objects.filter(pk=result.id).update(metadata={"by": "somebody"})

    gates["look"].open()
    row = wait_for_status(result, Status.SUCCESSFUL)

    assert (row.attempts, row.errors, row.claim_number) == (0, [], 2)
    assert atomic_tasks.written() == ["saw 0"]


def test_a_body_that_the_database_cannot_serialize_runs_again_uncounted(
    start: Start, isolation: Callable[[str], None]
) -> None:
    isolation("serializable")
    result = atomic_tasks.look_then_write.enqueue("look", "adds a row")
    start()
    with transaction.atomic():
        seen = Effect.objects.count()
        gates["look"].wait_for()
        atomic_tasks.write(f"test saw {seen}")

    gates["look"].open()
    row = wait_for_status(result, Status.SUCCESSFUL)

    assert (row.attempts, row.errors, row.claim_number) == (0, [], 2)
    assert atomic_tasks.written() == ["test saw 0", "saw 1"]


@pytest.fixture
def conflict_at_commit(transactional_db: None) -> Iterator[None]:
    """Refuse the first COMMIT of an Effect with a serialization failure."""
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE SEQUENCE tests_commits;
            CREATE FUNCTION tests_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('tests_commits') = 1 THEN
                    RAISE SQLSTATE '40001' USING MESSAGE = 'could not serialize access';
                END IF;
                RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER tests_refuse AFTER INSERT ON tests_effect DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION tests_refuse()
        """)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION tests_refuse CASCADE; DROP SEQUENCE tests_commits")


def test_commit_with_a_serialization_failure_runs_again_uncounted(start: Start, conflict_at_commit: None) -> None:
    gates["look"].open()
    result = atomic_tasks.look_then_write.enqueue("look", "adds a row")
    running = start()

    row = wait_for_status(result, Status.SUCCESSFUL)

    assert (row.attempts, row.errors, row.claim_number) == (0, [], 2)
    assert atomic_tasks.written() == ["saw 0"]
    assert running.loop.outcomes.counts.lost == 0


def test_body_with_endless_conflicts_fails(
    start: Start, isolation: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation("repeatable read")
    monkeypatch.setattr("jobqueue.executor.running.task_runner.MAX_STALE_POLLS", 2)
    gates["look"].open()
    result = atomic_tasks.look_then_write.enqueue("look", "conflict")
    start()

    row = wait_for_status(result, Status.FAILED)

    assert (row.attempts, row.claim_number) == (1, 2)
    assert "could not serialize access" in row.errors[0]["message"]
    assert row_of(result).polls == 0


def test_the_function_that_a_poll_returns_sees_what_others_have_committed(
    start: Start, isolation: Callable[[str], None]
) -> None:
    isolation("repeatable read")
    parts["isolation"] = lambda context: lambda: Done(atomic_tasks.isolation_level())
    start(threads=1)

    polled = Puppet.enqueue("isolation")
    assert wait_for_status(polled, Status.SUCCESSFUL).return_value == "read committed"

    gates["look"].open()
    after = atomic_tasks.look_then_write.enqueue("look", "adds a row")
    assert wait_for_status(after, Status.SUCCESSFUL).return_value == "repeatable read"

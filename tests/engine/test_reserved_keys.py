"""Reserved keys beside other sessions: each call returns a task of its own or that of a reservation that holds."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue.models import KeyReservation
from jobqueue.values.records import Enqueued
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new
from tests.engine.conftest import make_bench
from tests.engine.sessions import session, threads, wait_until_blocked
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SERIALIZATION_FAILURE = "40001"


@pytest.fixture(params=["portable-on-postgresql", "postgresql"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return make_bench(request.param)


@pytest.fixture
def fast_bench() -> Bench:
    return make_bench("postgresql")


def call(bench: Bench, **changes: Any) -> Enqueued:
    (answer,) = bench.engine.enqueues.enqueue([new(key="welcome", unique_for_seconds=3600.0, **changes)])
    return answer


def expired(bench: Bench) -> UUID:
    """Return an ended task whose reservation of the key is over."""
    first = call(bench)
    bench.set(first.id, status=Status.SUCCESSFUL, finished_at=bench.engine.db.now())
    KeyReservation.objects.update(expires_at=bench.engine.db.now())
    return first.id


def reserved_for(bench: Bench) -> list[UUID]:
    live = KeyReservation.objects.filter(expires_at__gt=bench.engine.db.now())
    return list(live.values_list("task_id", flat=True))


def wait_until_blocked_or_done(other: Future[Any]) -> None:
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() LIMIT 1"
    with session(autocommit=True) as observer:
        wait_until(lambda: other.done() or observer.run(query), "the other session waits or is done")


@pytest.mark.parametrize("commits", [True, False])
def test_expired_key_is_free_while_prune_deletes_it(bench: Bench, commits: bool) -> None:
    old = expired(bench)
    with threads(1) as start:
        with transaction.atomic():
            bench.engine.tasks.prune()
            calling = start(call, bench)
            wait_until_blocked()
            transaction.set_rollback(not commits)
        answer = calling.result(DEADLINE_SECONDS)

    assert answer.created
    assert answer.id != old
    assert reserved_for(bench) == [answer.id]


def test_prune_neither_deletes_a_renewed_key_nor_waits_for_it(bench: Bench) -> None:
    expired(bench)
    with threads(1) as start:
        with transaction.atomic():
            renewed = call(bench)
            pruning = start(bench.engine.tasks.prune)
            wait_until_blocked_or_done(pruning)
            waited = not pruning.done()
        pruning.result(DEADLINE_SECONDS)

    assert not waited
    assert reserved_for(bench) == [renewed.id]
    bench.set(renewed.id, status=Status.SUCCESSFUL, finished_at=bench.engine.db.now())
    assert call(bench).id == renewed.id


def test_key_that_is_renewed_while_prune_has_read_it_stays(bench: Bench) -> None:
    expired(bench)
    with threads(1) as start:
        renewing: list[Future[Enqueued]] = []

        def renew() -> None:
            renewing.append(start(call, bench))
            wait_until_blocked_or_done(renewing[0])

        with connection.execute_wrapper(before_first('DELETE FROM "jobqueue_keyreservation"', renew)):
            bench.engine.tasks.prune()
        renewed = renewing[0].result(DEADLINE_SECONDS)

    assert reserved_for(bench) == [renewed.id]


def before_first(words: str, action: Callable[[], None]) -> Any:
    actions = [action]

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if words in sql and actions:
            actions.pop()()
        return execute(sql, params, many, context)

    return wrapper


def test_caller_that_waited_gets_the_task_that_renewed_the_key(bench: Bench) -> None:
    old = expired(bench)
    with threads(1) as start:
        with transaction.atomic():
            winner = call(bench)
            waiting = start(call, bench)
            wait_until_blocked()
        answer = waiting.result(DEADLINE_SECONDS)

    assert winner.created
    assert winner.id != old
    assert (answer.id, answer.created) == (winner.id, False)


def test_caller_that_waited_for_a_rolled_back_renewal_creates_its_task(bench: Bench) -> None:
    old = expired(bench)
    with threads(1) as start:
        with transaction.atomic():
            call(bench)
            waiting = start(call, bench)
            wait_until_blocked()
            transaction.set_rollback(True)
        answer = waiting.result(DEADLINE_SECONDS)

    assert answer.created
    assert answer.id != old
    assert reserved_for(bench) == [answer.id]


def test_taken_key_locks_nothing(bench: Bench) -> None:
    """A caller in a long transaction delays no other caller of the same key."""
    first = call(bench)
    with threads(1) as start, transaction.atomic():
        assert call(bench).id == first.id
        assert start(call, bench).result(DEADLINE_SECONDS).id == first.id


class TestRepeatableRead:
    """A caller whose snapshot is older than the change gets an error that it can repeat, or a correct answer."""

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT count(*) FROM jobqueue_keyreservation")
            yield

    @contextmanager
    def refused(self) -> Iterator[None]:
        with pytest.raises(OperationalError) as caught:
            yield
        assert getattr(caught.value.__cause__, "sqlstate", "") == SERIALIZATION_FAILURE

    def test_key_that_was_renewed_since_is_refused(self, bench: Bench) -> None:
        expired(bench)
        with threads(1) as start, self.refused(), self.snapshot():
            start(call, bench).result(DEADLINE_SECONDS)
            call(bench)

        answer = call(bench)
        assert reserved_for(bench) == [answer.id]

    def test_key_that_was_pruned_since_is_free(self, fast_bench: Bench) -> None:
        expired(fast_bench)
        with threads(1) as start, self.snapshot():
            start(fast_bench.engine.tasks.prune).result(DEADLINE_SECONDS)
            answer = call(fast_bench)

        assert answer.created
        assert reserved_for(fast_bench) == [answer.id]

    def test_key_that_an_old_snapshot_does_not_show_is_refused(self, fast_bench: Bench) -> None:
        with threads(1) as start, self.refused(), self.snapshot():
            start(call, fast_bench).result(DEADLINE_SECONDS)
            call(fast_bench)

        assert len(reserved_for(fast_bench)) == 1

"""enqueue, on every engine."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connections
from django.test.utils import CaptureQueriesContext

from jobqueue.exceptions import DuplicateKey
from jobqueue.models import Task
from jobqueue.records import Status
from jobqueue.serialization.ids import new_id
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_new_task_is_ready_with_all_its_values(bench: Bench) -> None:
    parent = new_id()
    row = new(
        queue_name="mail",
        priority=3,
        args='[1, "a"]',
        kwargs='{"b": null}',
        options='{"timeout": 5}',
        metadata='{"m": true}',
        max_attempts=7,
        key="k",
        parent_id=parent,
        task_type="app.send",
    )

    (answer,) = bench.engine.enqueue([row])

    task = bench.row(row.id)
    assert (answer.id, answer.status, answer.created) == (row.id, Status.READY, True)
    assert answer.enqueued_at == task.enqueued_at
    assert (task.backend, task.queue_name, task.task_type) == (bench.engine.alias, "mail", "app.send")
    assert (task.args, task.kwargs, task.options, task.metadata) == (
        [1, "a"],
        {"b": None},
        {"timeout": 5},
        {"m": True},
    )
    assert (task.priority, task.max_attempts, task.key, task.parent_id) == (3, 7, "k", parent)
    assert (task.status, task.wake_at, task.expires_at, task.finished_at) == ("READY", None, None, None)
    assert (task.attempts, task.polls, task.executor_losses, task.claim_number) == (0, 0, 0, 0)
    assert (task.errors, task.worker_ids, task.return_value, task.inner_state) == ([], [], None, None)


def test_rank_is_the_moment_less_priority_times_aging(bench: Bench) -> None:
    high, low = bench.row(bench.add(priority=2)), bench.row(bench.add(priority=-1))

    assert high.rank == high.enqueued_at - timedelta(seconds=2 * 60)
    assert low.rank == low.enqueued_at + timedelta(seconds=60)


def test_rank_follows_the_aging_option(bench: Bench) -> None:
    task = bench.row(bench.with_options(aging=0.5).add(priority=100))

    assert task.rank == task.enqueued_at - timedelta(seconds=50)


def test_task_for_later_is_scheduled(bench: Bench) -> None:
    at = bench.engine.now() + timedelta(days=1)

    by_moment, by_seconds = bench.row(bench.add(wake_at=at)), bench.row(bench.add(wake_after_seconds=60.0))

    assert (by_moment.status, by_moment.wake_at) == ("SCHEDULED", at)
    assert by_seconds.status == "SCHEDULED"
    assert by_seconds.wake_at == by_seconds.enqueued_at + timedelta(seconds=60)


def test_task_for_a_moment_that_is_over_is_ready_now(bench: Bench) -> None:
    task = bench.row(bench.add(wake_at=bench.engine.now() - timedelta(days=1)))

    assert (task.status, task.wake_at, task.rank) == ("READY", None, task.enqueued_at)


def test_expiry_is_a_moment_or_seconds_from_now(bench: Bench) -> None:
    at = bench.engine.now() + timedelta(hours=1)

    by_seconds = bench.row(bench.add(expires_after_seconds=90.0))

    assert bench.row(bench.add(expires_at=at)).expires_at == at
    assert by_seconds.expires_at == by_seconds.enqueued_at + timedelta(seconds=90)


def test_answers_come_in_the_order_of_the_rows(bench: Bench) -> None:
    rows = [new(key=key) for key in ("b", None, "a", None, "c")]

    answers = bench.engine.enqueue(rows)

    assert [answer.id for answer in answers] == [row.id for row in rows]


def test_a_batch_is_claimed_in_the_order_it_was_given(bench: Bench) -> None:
    rows = [new() for _ in range(20)]
    bench.engine.enqueue(rows)

    assert bench.claim_ids() == [row.id for row in rows]


def test_more_rows_than_a_statement_takes(bench: Bench) -> None:
    rows = [new() for _ in range(1001)]

    answers = bench.engine.enqueue(rows)

    assert [answer.id for answer in answers] == [row.id for row in rows]
    assert bench.engine.tasks.count() == 1001


def test_enqueue_of_more_rows_than_a_statement_takes_inserts_all_or_none(bench: Bench) -> None:
    rows = [*(new() for _ in range(1000)), new(id=bench.add())]

    with pytest.raises(IntegrityError):
        bench.engine.enqueue(rows)

    assert bench.engine.tasks.count() == 1


def test_nothing_to_enqueue(bench: Bench) -> None:
    assert bench.engine.enqueue([]) == []


def test_integer_longer_than_python_reads_is_carried_all_the_same(bench: Bench) -> None:
    bench.add(args=f"[{'1' * 5000}]")

    assert bench.claim()[0].args == f"[{'1' * 5000}]"


def test_two_backends_in_one_database_do_not_see_each_other(bench: Bench) -> None:
    other = Bench(type(bench.engine)("other", bench.engine.options))
    mine, theirs = bench.add(key="k"), other.add(key="k")

    assert mine != theirs
    assert bench.claim_ids() == [mine]
    assert other.claim_ids() == [theirs]


class TestKey:
    def test_live_duplicate_is_answered_with_the_task_that_holds_the_key(self, bench: Bench) -> None:
        first, repeat = new(key="k"), new(key="k")
        (holder,) = bench.engine.enqueue([first])

        (answer,) = bench.engine.enqueue([repeat])

        assert (answer.id, answer.created) == (first.id, False)
        assert (answer.enqueued_at, answer.status) == (holder.enqueued_at, Status.READY)
        assert bench.engine.tasks.count() == 1

    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.RUNNING, Status.SUSPENDED])
    def test_every_live_state_holds_the_key(self, bench: Bench, status: Status) -> None:
        claimed = bench.running(key="k")
        if status is not Status.RUNNING:
            bench.commit(outcome(claimed, status, wake_after_seconds=60.0))

        (answer,) = bench.engine.enqueue([new(key="k")])

        assert (answer.id, answer.status, answer.created) == (claimed.id, status, False)

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_key_is_free_when_its_task_has_ended(self, bench: Bench, status: Status) -> None:
        ended = bench.ended(status, key="k")

        assert bench.add(key="k") != ended
        assert bench.row(ended).key == "k"

    def test_twice_in_one_batch_is_enqueued_once(self, bench: Bench) -> None:
        rows = [new(key="k"), new(), new(key="k")]

        answers = bench.engine.enqueue(rows)

        assert [answer.created for answer in answers] == [True, True, False]
        assert answers[2].id == rows[0].id
        assert bench.engine.tasks.count() == 2

    def test_many_keys_take_hardly_more_statements_than_one(self, bench: Bench) -> None:
        held = new(key="held")
        bench.engine.enqueue([held])
        rows = [new(key=key) for number in range(20) for key in (f"k{number}", "held", f"k{19 - number}", "new")]

        with CaptureQueriesContext(connections[bench.engine.database]) as queries:
            answers = bench.engine.enqueue(rows)

        assert len(queries) < 10
        first = {row.key: row.id for row in reversed(rows)} | {"held": held.id}
        assert [answer.id for answer in answers] == [first[row.key] for row in rows]
        assert [answer.created for answer in answers] == [row.id == first[row.key] for row in rows]
        assert bench.engine.tasks.count() == 22

    def test_duplicate_changes_nothing_of_the_holder(self, bench: Bench) -> None:
        pk = bench.add(key="k", args="[1]", priority=1)
        before = Task.objects.using(bench.engine.database).filter(pk=pk).values().get()

        bench.add(key="k", args="[2]", priority=2)

        assert Task.objects.using(bench.engine.database).filter(pk=pk).values().get() == before


class TestIdempotencyKey:
    def test_task_is_stored_with_it(self, bench: Bench) -> None:
        row = new(idempotency_key="order-1")

        (answer,) = bench.engine.enqueue_once([row])

        assert (answer.id, answer.created) == (row.id, True)
        assert bench.row(row.id).idempotency_key == "order-1"

    @pytest.mark.parametrize("status", [None, Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_one_that_was_seen_gives_the_task_that_has_it(self, bench: Bench, status: Status | None) -> None:
        held = bench.ended(status) if status else bench.add()
        bench.set(held, idempotency_key="order-1")

        (answer,) = bench.engine.enqueue_once([new(idempotency_key="order-1")])

        assert (answer.id, answer.created) == (held, False)
        assert answer.status == (status or Status.READY)
        assert bench.engine.tasks.count() == 1

    def test_seen_and_new_ones_in_one_batch(self, bench: Bench) -> None:
        (held,) = bench.engine.enqueue_once([new(idempotency_key="held")])
        rows = [new(idempotency_key=key) for key in ("b", None, "held", "a", None, "b")]

        answers = bench.engine.enqueue_once(rows)

        assert [answer.created for answer in answers] == [True, True, False, True, True, False]
        assert (answers[2].id, answers[5].id) == (held.id, rows[0].id)
        assert bench.engine.tasks.count() == 5

    def test_key_that_somebody_takes_between_look_and_insert(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look, taken = bench.engine.enqueuer._seen, new(idempotency_key="order-1")

        def slow_look(keys):
            found = look(keys)
            if not found:
                bench.engine.enqueue([taken])
            return found

        monkeypatch.setattr(bench.engine.enqueuer, "_seen", slow_look)

        (answer,) = bench.engine.enqueue_once([new(idempotency_key="order-1")])

        assert (answer.id, answer.created) == (taken.id, False)

    def test_holder_that_cannot_be_seen(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.add(idempotency_key="order-1")
        monkeypatch.setattr(bench.engine.enqueuer, "_seen", lambda keys: {})

        with pytest.raises(DuplicateKey):
            bench.engine.enqueue_once([new(idempotency_key="order-1")])

    def test_each_backend_has_its_own(self, bench: Bench) -> None:
        other = type(bench.engine)("other", bench.engine.options)

        (mine,), (theirs,) = (engine.enqueue_once([new(idempotency_key="k")]) for engine in (bench.engine, other))

        assert mine.created
        assert theirs.created

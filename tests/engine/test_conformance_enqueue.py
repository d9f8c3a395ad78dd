"""enqueue, on every engine."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connections
from django.test.utils import CaptureQueriesContext

from jobqueue.engine.inserts import Inserts
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import Task
from jobqueue.values.changes import CancelReport, RequeueReport
from jobqueue.values.ids import new_id
from jobqueue.values.records import AlikeTasks, CommitResult
from jobqueue.values.states import PoolName, Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_enqueue_stores_all_values(bench: Bench) -> None:
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

    (answer,) = bench.engine.enqueues.enqueue([row])

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


def test_plain_task_has_the_same_columns_as_a_tagged_one(bench: Bench) -> None:
    """PostgreSQL inserts them by two functions."""
    values = {"queue_name": "mail", "pool": PoolName.ASYNC, "priority": -3, "options": '{"timeout": 5}'}
    tagged, plain, other = new(**values, tags='["t"]'), new(**values), new(**values)

    bench.engine.enqueues.enqueue([tagged])
    bench.engine.enqueues.enqueue(AlikeTasks([plain, other]))

    stored = Task.objects.using(bench.engine.database)
    rows: list[dict[str, Any]] = [{**stored.filter(pk=row.id).values().get()} for row in (tagged, plain, other)]
    for row in rows:
        row["rank"] -= row.pop("enqueued_at")
        del row["id"]
    assert rows[0].pop("tags") == ["t"]
    assert rows[1].pop("tags") is rows[2].pop("tags") is None
    assert rows[0] == rows[1] == rows[2]


def test_batch_of_plain_tasks_stores_each_ones_arguments(bench: Bench) -> None:
    texts = ["", "line\nbreak", "\r\u2028", 'quote"', "back\\slash", "{brace},", "NULL", "\t", "é", "%s", "\\N"]
    rows = AlikeTasks(new(args=json.dumps([text]), kwargs=json.dumps({text: text})) for text in texts)

    answers = bench.engine.enqueues.enqueue(rows)

    stored = [bench.row(answer.id) for answer in answers]
    assert [row.id for row in rows] == [task.pk for task in stored]
    assert [task.args for task in stored] == [[text] for text in texts]
    assert [task.kwargs for task in stored] == [{text: text} for text in texts]
    assert len({task.enqueued_at for task in stored}) == 1
    assert {(task.status, answer.status, answer.created) for task, answer in zip(stored, answers, strict=True)} == {
        ("READY", Status.READY, True)
    }


@pytest.mark.parametrize(("priority", "aging"), [(2, 60.0), (-1, 60.0), (100, 0.5)])
def test_rank_is_time_of_enqueue_minus_priority_times_aging(bench: Bench, priority: int, aging: float) -> None:
    task = bench.row(bench.with_options(aging=aging).add(priority=priority))

    assert task.rank == task.enqueued_at - timedelta(seconds=priority * aging)


def test_engine_accepts_empty_lists(bench: Bench) -> None:
    engine = bench.engine

    assert (engine.enqueues.enqueue([]), engine.messages.send([]), engine.messages.wake([])) == ([], [], 0)
    assert (engine.commits.commit([]), engine.tasks.cancel([]), engine.tasks.requeue([])) == (
        CommitResult(),
        CancelReport(),
        RequeueReport(),
    )


def test_task_with_later_wake_at_is_scheduled(bench: Bench) -> None:
    at = bench.engine.db.now() + timedelta(days=1)

    by_moment, by_seconds = bench.row(bench.add(wake_at=at)), bench.row(bench.add(wake_after_seconds=60.0))

    assert (by_moment.status, by_moment.wake_at) == ("SCHEDULED", at)
    assert by_seconds.status == "SCHEDULED"
    assert by_seconds.wake_at == by_seconds.enqueued_at + timedelta(seconds=60)


def test_task_with_past_wake_at_is_ready(bench: Bench) -> None:
    task = bench.row(bench.add(wake_at=bench.engine.db.now() - timedelta(days=1)))

    assert (task.status, task.wake_at, task.rank) == ("READY", None, task.enqueued_at)


def test_expiry_is_a_time_or_seconds_from_enqueue(bench: Bench) -> None:
    at = bench.engine.db.now() + timedelta(hours=1)

    by_seconds = bench.row(bench.add(expires_after_seconds=90.0))

    assert bench.row(bench.add(expires_at=at)).expires_at == at
    assert by_seconds.expires_at == by_seconds.enqueued_at + timedelta(seconds=90)


def test_batch_is_claimed_in_order_of_enqueue(bench: Bench) -> None:
    rows = [new() for _ in range(20)]
    bench.engine.enqueues.enqueue(rows)

    assert bench.claim_ids() == [row.id for row in rows]


def test_enqueue_splits_large_batch_and_keeps_order(bench: Bench) -> None:
    rows = [new() for _ in range(1001)]

    answers = bench.engine.enqueues.enqueue(rows)

    assert [answer.id for answer in answers] == [row.id for row in rows]
    assert bench.engine.db.tasks.count() == 1001


def test_enqueue_of_large_batch_inserts_all_or_none(bench: Bench) -> None:
    rows = [*(new() for _ in range(1000)), new(id=bench.add())]

    with pytest.raises(IntegrityError):
        bench.engine.enqueues.enqueue(rows)

    assert bench.engine.db.tasks.count() == 1


def test_integer_too_long_for_python_is_kept(bench: Bench) -> None:
    bench.add(args=f"[{'1' * 5000}]")

    assert bench.claim()[0].args == f"[{'1' * 5000}]"


def test_backends_in_one_database_are_separate(bench: Bench) -> None:
    other = Bench(type(bench.engine)("other", bench.engine.options))
    first, second = bench.add(key="k"), other.add(key="k")

    assert first != second
    assert bench.claim_ids() == [first]
    assert other.claim_ids() == [second]


class TestKey:
    def test_enqueue_with_taken_key_returns_unchanged_live_task(self, bench: Bench) -> None:
        (live,) = bench.engine.enqueues.enqueue([new(key="k", args="[1]", priority=1)])
        before = bench.engine.db.tasks.values().get()

        (answer,) = bench.engine.enqueues.enqueue([new(key="k", args="[2]", priority=2)])

        assert (answer.id, answer.created) == (live.id, False)
        assert (answer.enqueued_at, answer.status) == (live.enqueued_at, Status.READY)
        assert bench.engine.db.tasks.values().get() == before

    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.RUNNING, Status.SUSPENDED])
    def test_every_live_state_keeps_key_taken(self, bench: Bench, status: Status) -> None:
        claimed = bench.running(key="k")
        if status is not Status.RUNNING:
            bench.commit(outcome(claimed, status, wake_after_seconds=60.0))

        (answer,) = bench.engine.enqueues.enqueue([new(key="k")])

        assert (answer.id, answer.status, answer.created) == (claimed.id, status, False)

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_key_is_free_after_task_ended(self, bench: Bench, status: Status) -> None:
        ended = bench.ended(status, key="k")

        assert bench.add(key="k") != ended
        assert bench.row(ended).key == "k"

    def test_many_keys_mix_and_free_keys_need_few_statements(self, bench: Bench) -> None:
        held = new(key="held")
        bench.engine.enqueues.enqueue([held])
        rows = [new(key=key) for number in range(20) for key in (f"k{number}", "held", f"k{19 - number}", "new")]

        with CaptureQueriesContext(connections[bench.engine.database]) as queries:
            answers = bench.engine.enqueues.enqueue(rows)
        assert len(queries) < 10 or not isinstance(bench.engine, PostgresEngine)
        with CaptureQueriesContext(connections[bench.engine.database]) as queries:
            bench.engine.enqueues.enqueue([new(key=f"n{number}") for number in range(20)])

        assert len(queries) < 10
        first = {row.key: row.id for row in reversed(rows)} | {"held": held.id}
        assert [answer.id for answer in answers] == [first[row.key] for row in rows]
        assert [answer.created for answer in answers] == [row.id == first[row.key] for row in rows]
        assert bench.engine.db.tasks.count() == 42


class TestIdempotencyKey:
    def test_idempotency_key_is_stored(self, bench: Bench) -> None:
        row = new(idempotency_key="order-1")

        (answer,) = bench.engine.enqueues.enqueue_once([row])

        assert (answer.id, answer.created) == (row.id, True)
        assert bench.row(row.id).idempotency_key == "order-1"

    @pytest.mark.parametrize("status", [None, Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_known_idempotency_key_returns_its_task(self, bench: Bench, status: Status | None) -> None:
        held = bench.ended(status) if status else bench.add()
        bench.set(held, idempotency_key="order-1")

        (answer,) = bench.engine.enqueues.enqueue_once([new(idempotency_key="order-1")])

        assert (answer.id, answer.created) == (held, False)
        assert answer.status == (status or Status.READY)
        assert bench.engine.db.tasks.count() == 1

    def test_batch_mixes_known_and_new_idempotency_keys(self, bench: Bench) -> None:
        (held,) = bench.engine.enqueues.enqueue_once([new(idempotency_key="held")])
        rows = [new(idempotency_key=key) for key in ("b", None, "held", "a", None, "b")]

        answers = bench.engine.enqueues.enqueue_once(rows)

        assert [answer.created for answer in answers] == [True, True, False, True, True, False]
        assert (answers[2].id, answers[5].id) == (held.id, rows[0].id)
        assert bench.engine.db.tasks.count() == 5

    def test_invisible_task_with_idempotency_key_is_duplicate_key(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.add(idempotency_key="order-1")
        monkeypatch.setattr(Inserts, "holders_of_idempotency_keys", lambda inserts, keys: {})

        with pytest.raises(DuplicateKey):
            bench.engine.enqueues.enqueue_once([new(idempotency_key="order-1")])

    def test_idempotency_keys_belong_to_one_backend(self, bench: Bench) -> None:
        other = type(bench.engine)("other", bench.engine.options)

        (first,), (second,) = (
            engine.enqueues.enqueue_once([new(idempotency_key="k")]) for engine in (bench.engine, other)
        )

        assert first.created
        assert second.created

"""Tasks and messages created by the SQL functions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from jobqueue import task
from jobqueue.conf.compat import InvalidTask
from jobqueue.engine import engine_for
from jobqueue.models import CounterDelta, InboxMessage, Task
from jobqueue.values.ids import new_id
from jobqueue.values.json import decode
from jobqueue.values.states import FINAL, Status
from tests import tasks
from tests.api.sql import BEGIN_AGAIN, FINISHED, NOT_FOUND, REFUSED, TAKEN, create, refused, send, sql
from tests.engine.bench import Bench, outcome
from tests.engine.sessions import Session, session, wait_until_blocked
from tests.executor.conftest import burst, start  # noqa: F401 - fixtures
from tests.executor.harness import Burst, Start
from tests.factories import TaskFactory
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db

ANY_ID = UUID("01900000-0000-7000-8000-000000000000")

# What jsonb stores and Python does not read.
UNREADABLE = {"digits": "9" * 4301}  # Python 3.13 reads JSON of 2,000 levels, 3.11 does not


@pytest.fixture
def bench() -> Bench:
    return Bench(engine_for("default"))


def create_in(other: Session, key: str) -> UUID:
    ((pk,),) = other.run("SELECT jobqueue_create_task(NULL, 'tests.tasks.add', key => %s)", key)
    assert isinstance(pk, UUID)
    return pk


def send_in(other: Session, receiver: UUID, *, notify: bool = False) -> None:
    other.run("SELECT jobqueue_send_to_task(%s, NULL, '1', %s)", receiver, notify)


class TestCreate:
    @pytest.mark.parametrize(
        ("more", "options"),
        [
            ("", {}),
            (
                ", key => 'k', priority => 7, max_attempts => 9, queue_name => 'q', metadata => '{\"a\": [1]}'",
                {"key": "k", "priority": 7, "max_attempts": 9, "queue_name": "q", "metadata": {"a": [1]}},
            ),
            (", priority => -100, timeout => '1.5 minutes'", {"priority": -100, "timeout": 90}),
            (
                ", run_after => '2999-01-01T00:00Z', expires_at => '2999-01-02T00:00Z'",
                {"run_after": datetime(2999, 1, 1, tzinfo=UTC), "expires": datetime(2999, 1, 2, tzinfo=UTC)},
            ),
            (", run_after => '1999-01-01T00:00Z'", {"run_after": datetime(1999, 1, 1, tzinfo=UTC)}),
        ],
    )
    def test_row_equals_one_that_python_enqueued(self, more: str, options: dict[str, Any]) -> None:
        from_sql = create(f", NULL, '[2]', '{{\"b\": 3}}'{more}")
        Task.objects.filter(pk=from_sql).update(backend="elsewhere")  # frees its key
        from_python = tasks.add.using(**options).enqueue(2, b=3).id

        rows: list[dict[str, Any]] = [{**Task.objects.filter(pk=pk).values().get()} for pk in (from_sql, from_python)]
        for row in rows:
            row["rank"] -= row["enqueued_at"]
            del row["id"], row["backend"], row["enqueued_at"]
        assert rows[0] == rows[1]

    def test_given_task_id_and_parent_id_are_used(self) -> None:
        parent = create()

        assert create(", %s", parent, task_id=ANY_ID) == ANY_ID
        assert Task.objects.get(pk=ANY_ID).parent_id == parent

    def test_missing_task_id_becomes_a_uuid7_of_now(self) -> None:
        pk = create()

        assert (pk.version, pk.variant) == (7, new_id().variant)
        milliseconds = sql("SELECT extract(epoch FROM clock_timestamp()) * 1000")
        assert 0 <= milliseconds - (pk.int >> 80) < 60_000

    def test_task_id_that_is_taken_is_refused(self) -> None:
        create(task_id=ANY_ID)

        with refused(TAKEN):
            create(task_id=ANY_ID)

    def test_given_backend_and_aging_are_used(self) -> None:
        row = Task.objects.get(pk=create(", backend => 'bulk', priority => 2, aging => '1 hour'"))

        assert row.backend == "bulk"
        assert row.enqueued_at - row.rank == timedelta(hours=2)

    def test_trigger_creates_tasks_and_sends_messages(self, bench: Bench) -> None:
        receiver = bench.suspended()
        sql(
            """
            CREATE TABLE shop_order (id integer, total integer, task uuid);
            CREATE FUNCTION shop_order_changed() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM jobqueue_create_task(
                    NULL, 'tests.tasks.add',
                    args => jsonb_build_array(NEW.id),
                    kwargs => jsonb_build_object('b', NEW.total),
                    key => 'receipt-' || NEW.id
                );
                PERFORM jobqueue_send_to_task(NEW.task, NULL, to_jsonb(NEW.total));
                RETURN NULL;
            END $$;
            CREATE TRIGGER shop_order_changed AFTER INSERT OR UPDATE ON shop_order
            FOR EACH ROW EXECUTE FUNCTION shop_order_changed();
            """
        )
        with transaction.atomic():
            sql("INSERT INTO shop_order VALUES (3, 30, %s)", receiver)
            transaction.set_rollback(True)
        sql("INSERT INTO shop_order VALUES (1, 10, %s), (2, 20, %s)", receiver, receiver)
        sql("UPDATE shop_order SET total = 0")

        calls = [(decode(task.args), decode(task.kwargs)) for task in bench.claim()]

        assert sorted(calls) == [([1], {"b": 10}), ([2], {"b": 20})]
        assert bench.bodies(receiver) == [10, 20, 0, 0]

    def test_parent_gets_message_when_child_ends(self, bench: Bench) -> None:
        parent = bench.suspended()
        child = create(", %s", parent)
        (claimed,) = bench.claim()

        bench.commit(outcome(claimed, Status.SUCCESSFUL, return_value="5"))

        (message,) = bench.inbox(parent)
        assert (message.sender_id, message.child_status, message.body) == (child, "SUCCESSFUL", 5)

    @pytest.mark.django_db(transaction=True)
    def test_executor_runs_tasks_created_in_sql(self, burst: Burst) -> None:  # noqa: F811
        good = create(", args => '[2]', kwargs => '{\"b\": 3}'")
        coroutine = create(", args => '[20]', queue_name => 'other'", task_type="tests.tasks.add_later")
        bad = create(", max_attempts => 3", task_type="tests.tasks.fail")
        as_declared = create(task_type="tests.tasks.fail")
        misfit = create(", args => '[1, 2, 3]', max_attempts => 1")
        expired = create(", args => '[1]', expires_at => '2001-01-01'")

        burst()

        rows = Task.objects.in_bulk()
        assert [rows[pk].return_value for pk in (good, coroutine)] == [5, 21]
        assert [rows[pk].status for pk in (bad, as_declared, expired)] == ["FAILED"] * 3
        assert (rows[bad].attempts, rows[bad].max_attempts) == (3, 3)
        assert rows[as_declared].attempts == 2
        assert rows[misfit].status == "AWAITING_CODE"
        assert rows[misfit].errors[-1]["exception_class_path"] == "jobqueue.exceptions.UnboundCall"
        assert rows[expired].errors[-1]["exception_class_path"] == "jobqueue.exceptions.Expired"


class TestKey:
    def test_duplicate_key_returns_the_live_task(self) -> None:
        first = create(", key => 'k'")

        assert create(", key => 'k'") == first
        assert create(", key => 'k', backend => 'bulk'") != first
        assert Task.objects.count() == 2

    def test_key_that_was_taken_over_returns_its_new_holder(self) -> None:
        new_holder = TaskFactory.create(key="k")
        TaskFactory.create(running=True, key="k", taken_over_by_id=new_holder.pk)

        assert create(", key => 'k'") == new_holder.pk

    def test_key_of_ended_task_creates_a_new_one(self) -> None:
        TaskFactory(successful=True, key="k")

        pk = create(", key => 'k'")

        assert Task.objects.live().get().pk == pk

    def test_key_freed_during_the_call_creates_the_task(self) -> None:
        """Triggers around the first insert: another task takes the key before it and ends after it."""
        sql(
            """
            CREATE FUNCTION take_key() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
            BEGIN
                IF pg_trigger_depth() = 1 AND NOT EXISTS (SELECT FROM jobqueue_task) THEN
                    PERFORM jobqueue_create_task(NULL, 'tests.tasks.add', key => 'k');
                END IF;
                RETURN NULL;
            END $$;
            CREATE FUNCTION free_key() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
            BEGIN
                IF pg_trigger_depth() = 1 THEN
                    UPDATE jobqueue_task SET status = 'SUCCESSFUL', finished_at = clock_timestamp()
                    WHERE key = 'k' AND finished_at IS NULL AND id <> '01900000-0000-7000-8000-000000000000';
                END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER take_key BEFORE INSERT ON jobqueue_task EXECUTE FUNCTION take_key();
            CREATE TRIGGER free_key AFTER INSERT ON jobqueue_task EXECUTE FUNCTION free_key();
            """
        )

        assert create(", key => 'k'", task_id=ANY_ID) == ANY_ID
        assert Task.objects.live().get().pk == ANY_ID
        assert Task.objects.successful().count() == 1

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("ending", [Session.commit, Session.rollback])
    def test_parallel_creates_with_one_key_create_one_task(self, ending: Any) -> None:
        with session() as first, ThreadPoolExecutor(8) as pool:
            holder = create_in(first, "k")
            others = [pool.submit(create_and_commit, "k") for _ in range(8)]
            wait_until_blocked()
            ending(first)
            answers = {other.result() for other in others}

        assert answers == {Task.objects.get().pk}
        assert (holder in answers) is (ending is Session.commit)

    @pytest.mark.django_db(transaction=True)
    def test_key_of_invisible_task_is_a_serialization_failure(self) -> None:
        with session() as own:
            own.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            own.run("SELECT count(*) FROM jobqueue_task")
            create_and_commit("k")
            with refused(BEGIN_AGAIN):
                create_in(own, "k")


def create_and_commit(key: str) -> UUID:
    with session() as own:
        pk = create_in(own, key)
        own.commit()
        return pk


def test_created_tasks_are_counted_once() -> None:
    for _ in range(2):
        create(", key => 'k', queue_name => 'q'")

    deltas = CounterDelta.objects.values_list("backend", "queue_name", "task_type", "submitted")
    assert list(deltas) == [("default", "q", "tests.tasks.add", 1)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("more", "sqlstate", "message"),
        [
            (", args => '{}'", REFUSED, "args must be a JSON array"),
            (", kwargs => '[]'", REFUSED, "kwargs must be a JSON object"),
            (", metadata => '3'", REFUSED, "metadata must be a JSON object"),
            (", run_after => 'infinity'", REFUSED, "must lie between the years 1970 and 9000"),
            (", run_after => '1969-12-31T23:59Z'", REFUSED, "must lie between the years 1970 and 9000"),
            (", expires_at => '9001-01-01T00:00Z'", REFUSED, "must lie between the years 1970 and 9000"),
            (", expires_at => '-infinity'", REFUSED, "must lie between the years 1970 and 9000"),
            (", priority => 100, aging => '50 years'", REFUSED, "must lie between the years 1970 and 9000"),
            (", args => NULL", "23502", ""),
            (", aging => NULL", "23502", ""),
            (", queue_name => NULL", "23502", ""),
            (", key => NULL, backend => NULL", "23502", ""),
            (", key => ''", REFUSED, "key must be a text of 1 to 255 characters, not ''"),
            (", key => repeat('k', 256)", REFUSED, "key must be a text of 1 to 255 characters, not 'kkk"),
            (", key => repeat('é', 560)", REFUSED, "key must be a text of 1 to 255 characters, not 'ééé"),
            (", queue_name => ''", REFUSED, "queue_name must be a text of 1 to 128 characters, not ''"),
            (", queue_name => repeat('q', 560)", REFUSED, "queue_name must be a text of 1 to 128 characters"),
            (", backend => ''", REFUSED, "backend must be a text of 1 to 64 characters, not ''"),
            (", backend => repeat('b', 65)", REFUSED, "backend must be a text of 1 to 64 characters"),
            (", priority => 101", REFUSED, "priority must be a whole number between -100 and 100, not 101"),
            (", priority => -40000", REFUSED, "priority must be a whole number between -100 and 100, not -40000"),
            (", max_attempts => 0", REFUSED, "max_attempts must be a whole number between 1 and 1000000, not 0"),
            (", max_attempts => 1000001", REFUSED, "max_attempts must be a whole number between 1 and 1000000, not"),
            (", timeout => '0'", REFUSED, "timeout must be above 0 and a year at most, not '00:00:00'"),
            (", timeout => '-1 s'", REFUSED, "timeout must be above 0 and a year at most, not '-00:00:01'"),
            (", timeout => '366 days'", REFUSED, "timeout must be above 0 and a year at most, not '366 days'"),
        ],
    )
    def test_values_that_a_row_cannot_hold_are_refused(self, more: str, sqlstate: str, message: str) -> None:
        with refused(sqlstate, message):
            create(more)
        assert not Task.objects.exists()

    @pytest.mark.parametrize("task_type", ["", "x" * 501, "x" * 100_000])
    @pytest.mark.usefixtures("own_registry")
    def test_names_of_tasks_are_bounded_as_in_python(self, task_type: str) -> None:
        with refused(REFUSED, "task_type must be a text of 1 to 500 characters, not '"):
            create(task_type=task_type)
        with pytest.raises(InvalidTask, match="must be a text of 1 to 500 characters, not '"):
            task(name=task_type)(tasks.add.func).enqueue(1)

    def test_tasks_of_this_package_are_refused(self) -> None:
        with refused(REFUSED, "task_type must be a task of the site, not 'jobqueue.bulk_action'"):
            create(task_type="jobqueue.bulk_action")
        assert not Task.objects.exists()

    @pytest.mark.parametrize("option", [{"key": ""}, {"key": "k" * 256}, {"queue_name": ""}, {"queue_name": "q" * 129}])
    def test_sql_and_python_refuse_ids_in_the_same_words(self, option: dict[str, Any]) -> None:
        ((name, value),) = option.items()
        with pytest.raises(InvalidTask) as caught:
            tasks.add.using(**option)
        sentence = str(caught.value).partition(": ")[2].rstrip(".")[:60]
        with refused(REFUSED, sentence):
            create(f", {name} => %s", value)

    def test_parent_must_be_a_living_task_of_the_backend(self, bench: Bench) -> None:
        for parent in (ANY_ID, *(bench.ended(status) for status in FINAL)):
            with refused(NOT_FOUND, f"parent {parent} is not an unfinished task of backend 'default'"):
                create(", %s", parent)
        parent = bench.suspended()
        with refused(NOT_FOUND, f"parent {parent} is not an unfinished task of backend 'bulk'"):
            create(", %s, backend => 'bulk'", parent)
        assert not Task.objects.filter(parent_id__isnull=False).exists()

    @pytest.mark.parametrize(
        "more",
        [
            ", key => repeat('k', 255), queue_name => repeat('é', 128), backend => repeat('b', 64)",
            ", priority => 100, aging => '1 day', max_attempts => 1000000, timeout => '365 days'",
            ", run_after => '1970-01-01T00:00Z', expires_at => '1970-01-01T00:00Z'",
            ", run_after => '9000-12-31T23:59Z', expires_at => '9000-12-31T23:59Z'",
            ", NULL, key => NULL, run_after => NULL, expires_at => NULL, max_attempts => NULL, timeout => NULL",
        ],
    )
    def test_extreme_values_are_accepted_and_read(self, more: str, bench: Bench) -> None:
        pk = create(more, task_type="x" * 500)

        assert Task.objects.get(pk=pk).task_type == "x" * 500
        assert bench.engine.inbox.wake_due() in (0, 1)  # which reads its times

    @pytest.mark.django_db(transaction=True)
    def test_unreadable_json_and_options_fail_their_task_alone(self, burst: Burst) -> None:  # noqa: F811
        bad = [create(", args => jsonb_build_array(%s::jsonb)", text) for text in UNREADABLE.values()]
        for options in ('{"max_attempts": 0}', '{"timeout": -1}'):  # which the function refuses, and an UPDATE does not
            bad.append(create(", args => '[1]'"))
            sql("UPDATE jobqueue_task SET options = %s WHERE id = %s RETURNING 1", options, bad[-1])
        good = create(", args => '[1]'")

        burst()

        rows = Task.objects.defer("args").in_bulk()
        assert rows[good].return_value == 2
        assert {rows[pk].status for pk in bad} == {"FAILED"}
        errors = {rows[pk].errors[-1]["exception_class_path"] for pk in bad}
        assert errors == {"jobqueue.exceptions.UndecodableTask"}


class TestSend:
    def test_message_is_stored_with_its_sender(self, bench: Bench) -> None:
        receiver = create()

        send(receiver, '{"a": [1]}', sender=ANY_ID)
        send(receiver, None)

        first, second = bench.inbox(receiver)
        assert (first.body, first.sender_id) == ({"a": [1]}, ANY_ID)
        assert (first.child_status, first.dedupe_key, first.consumed_at) == (None, None, None)
        assert (second.body, second.sender_id) == (None, None)
        assert sql("SELECT count(*) FROM jobqueue_inboxmessage WHERE body = 'null'") == 1

    def test_message_to_missing_or_ended_task_is_refused(self, bench: Bench) -> None:
        for receiver in (ANY_ID, None):
            with refused(NOT_FOUND, f"There is no task {receiver or '<NULL>'} to send to."):
                send(receiver)
        for receiver in [bench.ended(status) for status in FINAL]:
            with refused(FINISHED, f"Task {receiver} has ended and takes no messages."):
                send(receiver)
        assert not InboxMessage.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_open_transaction_blocks_no_receiver_and_sweep_wakes_them(self, bench: Bench) -> None:
        sql("SET lock_timeout = '1s'")
        asleep, waiting = bench.suspended(), create()
        running = bench.running()
        with session() as long, session() as short:
            for receiver in (asleep, waiting, running.id):
                send_in(long, receiver)
                send_in(short, receiver)
            short.run("DELETE FROM jobqueue_inboxmessage")  # leaves those of the other
            short.commit()

            assert bench.claim_ids() == [waiting]
            committed = bench.commit(outcome(running, Status.SUSPENDED, has_succeeded=True))
            assert committed.done == {running.id: Status.SUSPENDED}
            assert bench.engine.messages.sweep() == 0
            long.commit()

        assert bench.engine.messages.sweep() == 2
        assert {bench.status(pk) for pk in (asleep, running.id)} == {"READY"}
        assert [len(bench.inbox(pk)) for pk in (asleep, waiting, running.id)] == [1, 1, 1]

    @pytest.mark.django_db(transaction=True)
    def test_notify_of_message_arrives_at_commit(self) -> None:
        receiver = create(", backend => 'bulk'")
        with session() as sender, session() as listener:
            listener.run("LISTEN jobqueue")
            listener.commit()
            send_in(sender, receiver)
            sender.commit()
            send_in(sender, receiver, notify=True)
            assert listener.notifications(0) == []
            sender.rollback()
            send_in(sender, receiver, notify=True)
            send_in(sender, receiver, notify=True)
            sender.commit()
            assert listener.notifications(1) == ["bulk !wake"]

    @pytest.mark.django_db(transaction=True)
    def test_notify_of_due_task_names_its_queue(self) -> None:
        with session() as sender, session() as listener:
            listener.run("LISTEN jobqueue")
            listener.commit()
            sender.run("SELECT jobqueue_create_task(NULL, 't')")
            sender.run("SELECT jobqueue_create_task(NULL, 't', run_after => '2999-01-01', notify => true)")
            sender.run("SELECT jobqueue_create_task(NULL, 't', queue_name => 'my queue', key => 'k', notify => true)")
            sender.run("SELECT jobqueue_create_task(NULL, 't', queue_name => 'another', key => 'k', notify => true)")
            sender.commit()
            assert listener.notifications(1) == ["default my queue"]

    @pytest.mark.django_db(transaction=True)
    def test_executor_wakes_receiver(self, bench: Bench, burst: Burst) -> None:  # noqa: F811
        receiver = bench.suspended()
        Task.objects.filter(pk=receiver).update(task_type="tests.tasks.add", args=[2])
        send(receiver)

        burst()

        assert bench.row(receiver).return_value == 3

    @pytest.mark.django_db(transaction=True)
    def test_executor_wakes_receiver_at_once_after_notify(
        self,
        bench: Bench,
        start: Start,  # noqa: F811
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("jobqueue.executor.maintenance.SWEEP_SECONDS", 10 * DEADLINE_SECONDS)
        receivers = [bench.suspended() for _ in range(3)]
        Task.objects.update(task_type="tests.tasks.add", args=[2])
        listener = start(threads=1).process.listener
        wait_until(lambda: listener is not None and listener.is_listening, "LISTEN")

        for receiver in receivers:
            send(receiver, notify=True)
            wait_until(Task.objects.filter(pk=receiver, status="SUCCESSFUL").exists, "the receiver to succeed")

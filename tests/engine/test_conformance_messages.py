"""send, messages in a commit, and notifications of parents, on every engine."""

import json
from typing import Any

import pytest
from django.db import transaction

from jobqueue.exceptions import DuplicateKey, MessageAlreadyConsumed, TaskFinished, TaskNotFound
from jobqueue.models import InboxMessage
from jobqueue.values.ids import new_id
from jobqueue.values.records import ClaimedTask, CommitResult, Effects, NewMessage
from jobqueue.values.states import FINAL, Status
from tests.engine.bench import ERROR, Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def message(task_id, body="null", **changes):
    return NewMessage(task_id=task_id, body=body, **changes)


class TestSend:
    def test_send_stores_message(self, bench: Bench) -> None:
        pk, sender = bench.add(), new_id()

        (number,) = bench.send(pk, {"a": [1]}, sender_id=sender)

        (row,) = bench.inbox(pk)
        assert (row.pk, row.body, row.sender_id) == (number, {"a": [1]}, sender)
        assert (row.child_status, row.dedupe_key, row.consumed_at) == (None, None, None)
        assert row.sent_at is not None

    @pytest.mark.parametrize("make", [Bench.add, Bench.suspended, lambda bench: bench.running().id])
    def test_send_to_live_task_does_not_change_it(self, bench: Bench, make) -> None:
        pk = make(bench)
        before = bench.engine.db.tasks.filter(pk=pk).values().get()

        assert len(bench.send(pk)) == 1
        assert bench.engine.db.tasks.filter(pk=pk).values().get() == before

    def test_messages_of_one_sender_arrive_in_order(self, bench: Bench) -> None:
        a, b = bench.add(), bench.add()
        sent = [message((a, b)[number % 2], str(number)) for number in range(20)]

        ids = bench.engine.messages.send(sent)

        assert ids == sorted(ids)
        assert bench.bodies(a) == list(range(0, 20, 2))
        assert bench.bodies(b) == list(range(1, 20, 2))

    @pytest.mark.parametrize("status", FINAL)
    def test_send_to_finished_task_raises(self, bench: Bench, status: Status) -> None:
        with pytest.raises(TaskFinished):
            bench.send(bench.ended(status))

    @pytest.mark.parametrize("is_read", [False, True])
    def test_repeated_send_after_end_of_receiver_has_no_effect(self, bench: Bench, is_read: bool) -> None:
        claimed, other = bench.running(), bench.add()
        (number,) = bench.send(claimed.id, dedupe_key="k")
        effects = Effects(consumed=[number] if is_read else [])
        bench.commit(outcome(claimed, has_succeeded=True, effects=effects))

        assert bench.send(claimed.id, dedupe_key="k") == []
        sent = [message(claimed.id, dedupe_key="k"), message(other, "1"), message(claimed.id, dedupe_key="k")]
        assert len(bench.engine.messages.send(sent)) == 1
        assert bench.bodies(other) == [1]
        with pytest.raises(TaskFinished):
            bench.engine.messages.send([message(claimed.id, dedupe_key="k"), message(claimed.id, dedupe_key="new")])
        with pytest.raises(TaskFinished):
            bench.engine.messages.send([message(other, "2"), message(claimed.id)])
        assert bench.bodies(other) == [1]

    @pytest.mark.parametrize("is_finished", [True, False])
    def test_send_inserts_nothing_if_one_receiver_is_gone(self, bench: Bench, is_finished: bool) -> None:
        good = bench.add()
        bad = bench.ended() if is_finished else new_id()

        with pytest.raises(TaskFinished if is_finished else TaskNotFound):
            bench.engine.messages.send([message(good), message(bad), message(good, dedupe_key="k")])

        assert bench.inbox(good) == []

    def test_refused_send_keeps_transaction_of_caller(self, bench: Bench) -> None:
        good = bench.add()

        with transaction.atomic(using=bench.engine.database):
            with pytest.raises(TaskNotFound):
                bench.send(new_id())
            bench.send(good)

        assert len(bench.inbox(good)) == 1

    def test_send_to_other_backend_raises(self, bench: Bench) -> None:
        other = Bench(type(bench.engine)("other", bench.engine.options))

        with pytest.raises(TaskNotFound):
            bench.send(other.add())

    def test_task_types_of_receivers_are_returned(self, bench: Bench) -> None:
        a, b, elsewhere = bench.add(), bench.add(task_type="tests.other"), bench.add()
        bench.engine.db.tasks.filter(pk=elsewhere).update(backend="elsewhere")

        assert bench.engine.messages.task_types([a, b, elsewhere, new_id()]) == {a: "tests.noop", b: "tests.other"}


class TestDedupe:
    def test_dedupe_key_belongs_to_one_task(self, bench: Bench) -> None:
        a, b = bench.add(), bench.add()

        assert bench.send(a, dedupe_key="k")
        assert bench.send(b, dedupe_key="k")
        assert bench.send(a, dedupe_key="other")

    def test_dedupe_key_twice_in_batch_is_sent_once(self, bench: Bench) -> None:
        pk = bench.add()

        ids = bench.engine.messages.send(
            [message(pk, "1", dedupe_key="k"), message(pk, "2"), message(pk, "3", dedupe_key="k")]
        )

        assert len(ids) == 2
        assert bench.bodies(pk) == [1, 2]

    def test_repeat_of_consumed_message_has_no_effect(self, bench: Bench) -> None:
        claimed = bench.running()
        (number,) = bench.send(claimed.id, "secret", dedupe_key="k")
        bench.perform(claimed, consumed=[number])

        assert bench.send(claimed.id, "again", dedupe_key="k") == []
        (row,) = bench.inbox(claimed.id)
        assert row.body is None
        assert row.consumed_at is not None
        assert bench.status(claimed.id) == "SUSPENDED"


class TestConsume:
    def test_commit_deletes_exactly_consumed_messages(self, bench: Bench) -> None:
        claimed = bench.running()
        first, second, third = (bench.send(claimed.id, number)[0] for number in range(3))

        bench.perform(claimed, consumed=[third, first])

        assert [row.pk for row in bench.inbox(claimed.id)] == [second]

    def test_commit_keeps_consumed_messages_if_asked(self, bench: Bench) -> None:
        bench = bench.with_options(keep_messages=True)
        claimed = bench.running()
        first, second, third = (
            bench.send(claimed.id, n, dedupe_key=key)[0] for n, key in ((1, None), (2, "k"), (3, None))
        )

        bench.perform(claimed, consumed=[first, second])

        rows = [(row.pk, row.body, row.consumed_at is not None) for row in bench.inbox(claimed.id)]
        assert rows == [(first, 1, True), (second, 2, True), (third, 3, False)]
        assert [message.id for message in bench.engine.messages.read_messages([claimed.id])[claimed.id]] == [third]

    def test_missing_message_refuses_outcome(self, bench: Bench) -> None:
        claimed, other = bench.running(), bench.running()
        first, second = (bench.send(claimed.id, number)[0] for number in range(2))
        InboxMessage.objects.using(bench.engine.database).filter(pk=first).delete()

        answer = bench.commit(
            outcome(
                claimed,
                Status.SUSPENDED,
                effects=Effects(consumed=[first, second], spawn=[new(key="child")]),
            ),
            outcome(other, Status.SUSPENDED),
        )

        assert answer.done == {other.id: Status.SUSPENDED}
        assert isinstance(answer.refused[claimed.id], MessageAlreadyConsumed)
        assert [row.pk for row in bench.inbox(claimed.id)] == [second]
        assert bench.status(claimed.id) == "RUNNING"
        assert not bench.engine.db.tasks.filter(key="child").exists()

    def test_message_is_not_consumed_twice(self, bench: Bench) -> None:
        claimed = bench.running()
        (number,) = bench.send(claimed.id, dedupe_key="k")
        InboxMessage.objects.using(bench.engine.database).update(consumed_at=bench.engine.db.now())

        assert isinstance(bench.perform(claimed, consumed=[number]).refused[claimed.id], MessageAlreadyConsumed)

    def test_message_of_another_task_is_not_consumed(self, bench: Bench) -> None:
        claimed, other = bench.running(), bench.running()
        (number,) = bench.send(other.id)

        assert claimed.id in bench.perform(claimed, consumed=[number]).refused
        assert len(bench.inbox(other.id)) == 1


class TestUnread:
    def test_suspended_task_with_unread_messages_is_ready(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.send(claimed.id)
        before = bench.engine.db.now()

        answer = bench.perform(claimed)

        row = bench.row(claimed.id)
        assert answer.done == {claimed.id: Status.READY}
        assert (row.status, row.wake_at, row.polls) == ("READY", None, 1)
        assert row.rank >= before.replace(microsecond=before.microsecond // 1000 * 1000)

    def test_suspended_task_without_unread_messages_waits(self, bench: Bench) -> None:
        claimed = bench.running()
        number = bench.send(claimed.id)

        assert bench.perform(claimed, consumed=number).done == {claimed.id: Status.SUSPENDED}

    def test_task_that_left_messages_waits_until_wake_at(self, bench: Bench) -> None:
        claimed = bench.running()
        left = bench.send(claimed.id)

        answer = bench.commit(outcome(claimed, Status.SUSPENDED, wake_after_seconds=0.1, effects=Effects(unread=left)))

        assert answer.done == {claimed.id: Status.SUSPENDED}
        assert bench.row(claimed.id).wake_at is not None

    def test_message_newer_than_left_ones_makes_task_ready(self, bench: Bench) -> None:
        claimed = bench.running()
        left = bench.send(claimed.id)
        bench.send(claimed.id)

        assert bench.perform(claimed, unread=left).done == {claimed.id: Status.READY}

    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.SUCCESSFUL])
    def test_unread_messages_do_not_change_other_outcomes(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()
        bench.send(claimed.id)

        answer = bench.commit(outcome(claimed, status, wake_after_seconds=60.0))

        assert answer.done == {claimed.id: status}
        assert len(bench.inbox(claimed.id)) == 1


class TestEffects:
    def test_commit_spawns_children(self, bench: Bench) -> None:
        claimed = bench.running()
        children = [new(args="[1]"), new(args="[2]", wake_after_seconds=60.0)]

        bench.perform(claimed, spawn=children)

        rows = [bench.row(child.id) for child in children]
        assert [row.parent_id for row in rows] == [claimed.id, claimed.id]
        assert [row.status for row in rows] == ["READY", "SCHEDULED"]

    def test_message_to_suspended_task_makes_it_ready_in_commit(self, bench: Bench) -> None:
        claimed, waiting, asleep = bench.running(), bench.suspended(), bench.suspended(wake_after_seconds=3600.0)

        answer = bench.perform(claimed, send=[message(waiting, "1"), message(asleep, "2")])

        assert answer == CommitResult(done={claimed.id: Status.SUSPENDED})
        assert [bench.status(pk) for pk in (waiting, asleep)] == ["READY", "READY"]
        assert (bench.bodies(waiting), bench.bodies(asleep)) == ([1], [2])

    def test_message_does_not_start_scheduled_task(self, bench: Bench) -> None:
        claimed, tomorrow = bench.running(), bench.add(wake_after_seconds=86_400.0)

        bench.perform(claimed, send=[message(tomorrow)])

        assert bench.status(tomorrow) == "SCHEDULED"
        assert bench.row(tomorrow).wake_at is not None

    def test_two_tasks_of_one_batch_send_to_each_other(self, bench: Bench) -> None:
        a, b = bench.running(), bench.running()

        answer = bench.commit(
            outcome(a, Status.SUSPENDED, effects=Effects(send=[message(b.id, '"from a"')])),
            outcome(b, Status.SUSPENDED, effects=Effects(send=[message(a.id, '"from b"')])),
        )

        assert answer == CommitResult(done={a.id: Status.READY, b.id: Status.READY})
        assert (bench.bodies(a.id), bench.bodies(b.id)) == (["from b"], ["from a"])

    def test_task_that_sends_to_itself_is_ready(self, bench: Bench) -> None:
        claimed = bench.running()

        assert bench.perform(claimed, send=[message(claimed.id)]).done == {claimed.id: Status.READY}

    def test_poll_may_send_to_child_it_spawns(self, bench: Bench) -> None:
        claimed, child = bench.running(), new()

        answer = bench.perform(claimed, spawn=[child], send=[message(child.id, "1")])

        assert answer == CommitResult(done={claimed.id: Status.SUSPENDED})
        assert bench.bodies(child.id) == [1]

    @pytest.mark.parametrize("is_finished", [True, False])
    def test_send_to_missing_task_refuses_only_its_outcome(self, bench: Bench, is_finished: bool) -> None:
        bad, good, receiver = bench.running(), bench.running(), bench.suspended()
        gone = bench.ended() if is_finished else new_id()

        answer = bench.commit(
            outcome(bad, Status.SUSPENDED, effects=Effects(send=[message(receiver, "1"), message(gone)])),
            outcome(good, Status.SUSPENDED, effects=Effects(send=[message(receiver, "2")])),
        )

        assert answer.done == {good.id: Status.SUSPENDED}
        assert isinstance(answer.refused[bad.id], TaskFinished if is_finished else TaskNotFound)
        assert bench.bodies(receiver) == [2]

    def test_spawn_with_taken_key_is_refused(self, bench: Bench) -> None:
        claimed, holder = bench.running(), bench.add(key="k")

        answer = bench.perform(claimed, spawn=[new(key="k")])

        assert isinstance(answer.refused[claimed.id], DuplicateKey)
        assert bench.engine.db.tasks.filter(key="k").count() == 1
        assert bench.row(holder).parent_id is None

    def test_droppable_message_to_finished_task_is_dropped(self, bench: Bench) -> None:
        claimed, living, ended = bench.running(), bench.add(), bench.ended()
        messages = [message(living, "1"), message(ended, "2", is_droppable=True), message(living, is_droppable=True)]

        assert bench.perform(claimed, send=messages).done
        assert bench.bodies(living) == [1, None]
        assert bench.bodies(ended) == []


def child_of(bench: Bench, parent: object) -> ClaimedTask:
    return bench.running(parent_id=parent)


class TestParent:
    """The commit that ends a child sends one message to its parent."""

    @pytest.mark.parametrize(
        ("status", "changes", "body"),
        [
            (Status.SUCCESSFUL, {"return_value": '{"a": 1}'}, {"a": 1}),
            (Status.SUCCESSFUL, {}, None),
            (Status.FAILED, {"error": ERROR}, json.loads(ERROR)),
            (Status.CANCELLED, {}, None),
        ],
    )
    def test_end_of_child_notifies_and_wakes_parent(
        self, bench: Bench, status: Status, changes: dict[str, Any], body: object
    ) -> None:
        parent = bench.suspended()
        child = child_of(bench, parent)

        answer = bench.commit(outcome(child, status, **changes))

        (sent,) = bench.inbox(parent)
        assert answer == CommitResult(done={child.id: status})
        assert (sent.sender_id, sent.child_status, sent.body) == (child.id, status, body)
        assert bench.status(parent) == "READY"
        assert bench.row(child.id).parent_notified_at is not None

    @pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.SUSPENDED])
    def test_unfinished_child_does_not_notify_parent(self, bench: Bench, status: Status) -> None:
        parent = bench.suspended()

        bench.commit(outcome(child_of(bench, parent), status, error=ERROR, wake_after_seconds=60.0))

        assert bench.inbox(parent) == []
        assert bench.status(parent) == "SUSPENDED"

    def test_running_child_that_is_cancelled_notifies_parent(self, bench: Bench) -> None:
        parent = bench.suspended()
        child = child_of(bench, parent)
        bench.engine.tasks.cancel([child.id])
        assert bench.inbox(parent) == []

        bench.commit(outcome(child, Status.SCHEDULED, wake_after_seconds=60.0))

        assert [sent.child_status for sent in bench.inbox(parent)] == ["CANCELLED"]

    def test_parent_suspending_in_same_batch_is_ready(self, bench: Bench) -> None:
        parent = bench.running()
        child = child_of(bench, parent.id)

        answer = bench.commit(outcome(parent, Status.SUSPENDED), outcome(child))

        assert answer.done == {parent.id: Status.READY, child.id: Status.SUCCESSFUL}

    def test_each_child_of_batch_notifies_parent(self, bench: Bench) -> None:
        parent = bench.suspended()
        children = [child_of(bench, parent) for _ in range(3)]

        bench.commit(*(outcome(child) for child in children))

        assert {sent.sender_id for sent in bench.inbox(parent)} == {child.id for child in children}

    @pytest.mark.parametrize("is_gone", [True, False])
    def test_notification_of_finished_or_missing_parent_is_dropped(self, bench: Bench, is_gone: bool) -> None:
        parent = new_id() if is_gone else bench.ended()
        child = child_of(bench, parent)

        assert bench.commit(outcome(child)).done == {child.id: Status.SUCCESSFUL}
        assert InboxMessage.objects.using(bench.engine.database).count() == 0

    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
    def test_requeued_parent_reads_notifications_of_children(self, bench: Bench, status: Status) -> None:
        parent = bench.ended(status)
        child, waiting = child_of(bench, parent), bench.add(parent_id=parent)

        assert bench.commit(outcome(child)).dropped == {}
        bench.engine.tasks.cancel([waiting])
        assert bench.status(parent) == status

        bench.engine.tasks.requeue([parent])
        (claimed,) = bench.claim(queues=[bench.row(parent).queue_name])
        messages = bench.engine.messages.read_messages([claimed.id])[claimed.id]
        assert [(row.sender_id, row.child_status) for row in messages] == [
            (child.id, Status.SUCCESSFUL),
            (waiting, Status.CANCELLED),
        ]

    def test_droppable_message_to_failed_parent_is_dropped(self, bench: Bench) -> None:
        parent = bench.ended(Status.FAILED)
        child = child_of(bench, parent)

        assert bench.perform(child, send=[message(parent, is_droppable=True)]).dropped == {child.id: 1}
        assert bench.inbox(parent) == []

    @pytest.mark.parametrize("end", ["commit", "cancel", "rescue"])
    def test_requeued_child_notifies_again_and_withdraws_its_message(self, bench: Bench, end: str) -> None:
        parent = bench.suspended()
        child, other = child_of(bench, parent), child_of(bench, parent)
        for failed in (child, other):
            bench.commit(outcome(failed, Status.FAILED, error=ERROR))
        bench.engine.tasks.requeue([child.id])
        assert [sent.sender_id for sent in bench.inbox(parent)] == [other.id]
        if end == "cancel":
            bench.engine.tasks.cancel([child.id])
        else:
            bench.beat()
            (again,) = bench.claim(queues=[child.queue_name])
            if end == "commit":
                bench.commit(outcome(again))
            else:
                bench.set(child.id, executor_losses=2)
                bench.time_passes(60)
                bench.engine.executors.rescue()

        ended = {"commit": "SUCCESSFUL", "cancel": "CANCELLED", "rescue": "FAILED"}[end]
        assert [(sent.sender_id, sent.child_status) for sent in bench.inbox(parent)] == [
            (other.id, "FAILED"),
            (child.id, ended),
        ]
        assert bench.status(parent) == "READY"

    def test_requeued_child_of_a_running_parent_keeps_its_message(self, bench: Bench) -> None:
        """The poll of the parent may consume it."""
        parent = bench.running()
        child = child_of(bench, parent.id)
        bench.commit(outcome(child, Status.FAILED, error=ERROR))
        (read,) = bench.engine.messages.read_messages([parent.id])[parent.id]
        bench.engine.tasks.requeue([child.id])

        assert bench.perform(parent, consumed=[read.id]).done == {parent.id: Status.SUSPENDED}
        bench.commit(outcome(bench.claim(queues=[child.queue_name])[0]))

        assert [sent.child_status for sent in bench.inbox(parent.id)] == ["SUCCESSFUL"]

    def test_waiting_child_that_is_cancelled_notifies_parent(self, bench: Bench) -> None:
        parent = bench.suspended()
        child = bench.add(parent_id=parent)

        report = bench.engine.tasks.cancel([child])

        assert report.parents == {parent}
        assert [(sent.sender_id, sent.child_status) for sent in bench.inbox(parent)] == [(child, "CANCELLED")]
        assert bench.engine.messages.wake(report.parents) == 1

"""What people do with workflows, on every engine: requeue them with a failed child, and change their journals."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobqueue.exceptions import ChangeRefused, TaskNotFound
from jobqueue.models import JournalEntry
from jobqueue.values.journal import Entry, EntryKind, EntryStatus
from jobqueue.values.records import ClaimedTask, Effects
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, new, outcome
from tests.engine.test_conformance_journal import entry, names

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def failed_family(bench: Bench, **changes: Any) -> tuple[UUID, UUID]:
    """Return a workflow that has failed because of its child, and the child."""
    parent = bench.running()
    child = bench.running(parent_id=parent.id, **changes)
    spawned = entry("pack", kind=EntryKind.SPAWN, status=EntryStatus.WAITING, child_id=child.id)
    bench.engine.journal.record(parent, bench.executor_id, [spawned])
    bench.commit(outcome(child, Status.FAILED, error=ERROR))
    fail_because_of(bench, parent, child.id)
    return parent.id, child.id


def fail_because_of(bench: Bench, parent: ClaimedTask, child: UUID) -> None:
    """Commit a poll of a workflow that consumes the end of its child, and fails."""
    failed = entry("pack", kind=EntryKind.SPAWN, status=EntryStatus.FAILED, child_id=child, error=ERROR)
    effects = Effects(consumed=[message.pk for message in bench.inbox(parent.id)], journal=[failed])
    state = json.dumps({"failed_child": str(child)})
    bench.commit(outcome(parent, Status.FAILED, error=ERROR, inner_state=state, effects=effects))


def statuses(bench: Bench, *ids: UUID) -> list[str]:
    return [bench.status(pk) for pk in ids]


class TestRequeue:
    @pytest.mark.parametrize("is_child", [True, False])
    def test_requeue_of_one_of_a_family_requeues_the_other(self, bench: Bench, is_child: bool) -> None:
        parent, child = failed_family(bench)

        report = bench.engine.tasks.requeue([child if is_child else parent])

        assert (report.requeued, report.skipped, report.key_taken) == (2, 0, 0)
        assert report.related == {parent if is_child else child}
        assert statuses(bench, parent, child) == [Status.READY, Status.READY]
        (spawned,) = bench.engine.journal.read(parent).entries
        assert (spawned.status, spawned.error, spawned.finished_at) == (EntryStatus.WAITING, None, None)

    def test_workflow_goes_on_after_the_requeued_child(self, bench: Bench) -> None:
        parent, child = failed_family(bench)
        bench.engine.tasks.requeue([child])
        (polled,) = bench.claim(queues=[bench.row(parent).queue_name])
        bench.perform(polled)
        (again,) = bench.claim(queues=[bench.row(child).queue_name])

        bench.commit(outcome(again, return_value="5"))

        assert bench.bodies(parent) == [5]
        assert bench.status(parent) == Status.READY

    def test_chain_of_failed_workflows_is_requeued_up_to_its_root(self, bench: Bench) -> None:
        root = bench.running()
        middle = bench.running(parent_id=root.id)
        leaf = bench.running(parent_id=middle.id)
        bench.commit(outcome(leaf, Status.FAILED, error=ERROR))
        fail_because_of(bench, middle, leaf.id)
        fail_because_of(bench, root, middle.id)

        assert bench.engine.tasks.requeue([middle.id]).requeued == 3

        assert statuses(bench, root.id, middle.id, leaf.id) == [Status.READY] * 3

    def test_workflow_that_failed_for_another_reason_stays(self, bench: Bench) -> None:
        parent, child = failed_family(bench)
        bench.set(parent, inner_state={"failed_child": str(uuid4())})

        assert bench.engine.tasks.requeue([child]).requeued == 1

        assert statuses(bench, parent, child) == [Status.FAILED, Status.READY]

    @pytest.mark.parametrize("state", ["none", "list", "child"])
    def test_actor_without_a_journal_stays(self, bench: Bench, state: str) -> None:
        parent, child = failed_family(bench)
        JournalEntry.objects.using(bench.engine.database).all().delete()
        if state != "child":
            bench.set(parent, inner_state=None if state == "none" else [str(child)])

        assert bench.engine.tasks.requeue([child]).requeued == 1

        assert bench.status(parent) == Status.FAILED

    def test_discarded_workflow_stays(self, bench: Bench) -> None:
        parent, child = failed_family(bench)
        bench.engine.tasks.discard([parent])

        assert bench.engine.tasks.requeue([child]).requeued == 1

        assert bench.status(parent) == Status.CANCELLED

    def test_workflow_spawns_another_child_if_its_own_is_gone(self, bench: Bench) -> None:
        parent, child = failed_family(bench)
        bench.engine.tasks.delete([child])

        assert bench.engine.tasks.requeue([parent]).requeued == 1

        assert names(bench, parent) == []

    def test_child_whose_key_is_taken_stays_failed_for_its_workflow(self, bench: Bench) -> None:
        parent, child = failed_family(bench, key="one")
        bench.add(key="one")

        report = bench.engine.tasks.requeue([parent])

        assert (report.requeued, report.key_taken) == (1, 1)
        assert statuses(bench, parent, child) == [Status.READY, Status.FAILED]
        assert bench.engine.journal.read(parent).entries[0].status == EntryStatus.FAILED

    def test_requeue_of_both_counts_each_once(self, bench: Bench) -> None:
        parent, child = failed_family(bench)

        report = bench.engine.tasks.requeue([parent, child])

        assert (report.requeued, report.skipped, report.related) == (2, 0, frozenset())

    def test_requeue_of_a_cancelled_workflow_forgets_the_cancel(self, bench: Bench) -> None:
        claimed = bench.running()
        entries = [entry(), entry("receive", kind=EntryKind.CANCEL, status=EntryStatus.CANCELLED)]
        bench.commit(outcome(claimed, Status.CANCELLED, inner_state="{}", effects=Effects(journal=entries)))

        bench.engine.tasks.requeue([claimed.id])

        assert names(bench, claimed.id) == ["charge"]

    def test_requeue_of_a_compensated_workflow_keeps_the_cancel(self, bench: Bench) -> None:
        claimed = bench.running()
        entries = [
            entry("refund", kind=EntryKind.COMPENSATION),
            entry("receive", kind=EntryKind.CANCEL, status=EntryStatus.CANCELLED),
        ]
        bench.commit(outcome(claimed, Status.CANCELLED, inner_state="{}", effects=Effects(journal=entries)))

        bench.engine.tasks.requeue([claimed.id])

        assert names(bench, claimed.id) == ["refund", "receive"]


def waiting_for_retry(bench: Bench, task_status: Status = Status.SUSPENDED, **changes: Any) -> UUID:
    """Return a workflow whose step has failed: it waits for the next attempt, or has FAILED."""
    claimed = bench.running()
    failed: dict[str, Any] = {
        "status": EntryStatus.RETRYING,
        "attempts": 3,
        "error": ERROR,
        "due_seconds": 3600.0,
    } | changes
    state = json.dumps({"code": "1", "waiting": {"name": "charge", "kind": "retry"}})
    effects = Effects(journal=[entry("now", kind=EntryKind.VALUE), entry(**failed)])
    bench.commit(outcome(claimed, task_status, has_succeeded=True, inner_state=state, effects=effects))
    return claimed.id


def only(bench: Bench, pk: UUID, name: str = "charge") -> Entry:
    return next(entry for entry in bench.engine.journal.read(pk).entries if entry.name == name)


class TestChanges:
    @pytest.mark.parametrize("status", [Status.SUSPENDED, Status.SCHEDULED, Status.FAILED])
    def test_given_result_lets_the_workflow_go_on(self, bench: Bench, status: Status) -> None:
        pk = waiting_for_retry(bench, status)

        changed = bench.engine.journal.give(pk, "charge", '{"id":7}')

        assert changed.ready == {pk}
        step = only(bench, pk)
        assert (step.status, step.attempts) == (EntryStatus.SUCCESSFUL, 3)
        assert json.loads(step.value or "") == {"id": 7}
        assert (bench.status(pk), bench.row(pk).inner_state) == (Status.READY, {"code": "1"})

    def test_retried_step_is_due_with_all_its_attempts(self, bench: Bench) -> None:
        pk = waiting_for_retry(bench, Status.FAILED)

        bench.engine.journal.retry(pk, "charge")

        again = only(bench, pk)
        assert (again.status, again.attempts, again.finished_at) == (EntryStatus.RETRYING, 0, None)
        assert again.due_at is not None
        assert again.due_at <= bench.engine.db.now()
        assert bench.status(pk) == Status.READY

    def test_retried_child_is_requeued(self, bench: Bench) -> None:
        parent, child = failed_family(bench)

        changed = bench.engine.journal.retry(parent, "pack")

        assert changed.ready == {parent, child}
        assert statuses(bench, parent, child) == [Status.READY, Status.READY]
        assert only(bench, parent, "pack").status == EntryStatus.WAITING

    def test_result_of_a_child_is_given_without_its_requeue(self, bench: Bench) -> None:
        parent, child = failed_family(bench)

        bench.engine.journal.give(parent, "pack", "5")

        assert statuses(bench, parent, child) == [Status.READY, Status.FAILED]
        assert only(bench, parent, "pack").status == EntryStatus.SUCCESSFUL

    @pytest.mark.parametrize(
        ("kind", "status"),
        [
            (EntryKind.SLEEP, EntryStatus.SKIPPED),
            (EntryKind.RECEIVE, EntryStatus.TIMED_OUT),
            (EntryKind.WAIT, EntryStatus.TIMED_OUT),
        ],
    )
    def test_skipped_wait_ends_now(self, bench: Bench, kind: EntryKind, status: EntryStatus) -> None:
        pk = waiting_for_retry(bench, kind=kind, status=EntryStatus.WAITING)

        bench.engine.journal.skip(pk, "charge")

        skipped = only(bench, pk)
        assert skipped.status == status
        assert skipped.finished_at is not None
        assert bench.status(pk) == Status.READY

    def test_rewound_workflow_forgets_later_entries_and_cancels_their_children(self, bench: Bench) -> None:
        claimed = bench.running()
        early, late = bench.running(parent_id=claimed.id), new(parent_id=claimed.id)
        entries = [
            entry("first", kind=EntryKind.SPAWN, child_id=early.id),
            entry("charge"),
            entry("second", kind=EntryKind.SPAWN, status=EntryStatus.WAITING, child_id=late.id),
        ]
        bench.commit(
            outcome(
                claimed,
                Status.SUSPENDED,
                has_succeeded=True,
                inner_state='{"generation":1,"waiting":{}}',
                effects=Effects(journal=entries, spawn=[late]),
            )
        )

        bench.engine.journal.rewind(claimed.id, "charge")

        assert names(bench, claimed.id) == ["first"]
        assert statuses(bench, claimed.id, early.id, late.id) == [Status.READY, Status.RUNNING, Status.CANCELLED]
        assert bench.inbox(claimed.id) == []
        assert bench.row(claimed.id).inner_state == {"generation": 1}

    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
    def test_rewound_workflow_that_has_ended_runs_again(self, bench: Bench, status: Status) -> None:
        pk = waiting_for_retry(bench, status)

        bench.engine.journal.rewind(pk, "charge")

        assert names(bench, pk) == ["now"]
        assert bench.status(pk) == Status.READY

    @pytest.mark.parametrize("verb", ["give", "retry", "skip", "rewind"])
    def test_change_of_a_running_workflow_is_refused(self, bench: Bench, verb: str) -> None:
        claimed = bench.running()
        bench.engine.journal.record(claimed, bench.executor_id, [entry(status=EntryStatus.RETRYING)])

        with pytest.raises(ChangeRefused, match="is running"):
            change(bench, verb, claimed.id)

        assert only(bench, claimed.id).status == EntryStatus.RETRYING

    @pytest.mark.parametrize("verb", ["give", "retry", "skip", "rewind"])
    def test_change_of_an_unknown_task_or_entry_is_refused(self, bench: Bench, verb: str) -> None:
        with pytest.raises(TaskNotFound):
            change(bench, verb, uuid4())
        with pytest.raises(ChangeRefused, match="no entry other"):
            change(bench, verb, waiting_for_retry(bench), name="other")

    @pytest.mark.parametrize(
        ("verb", "status", "changes", "reason"),
        [
            ("give", Status.SUSPENDED, {"kind": EntryKind.SLEEP}, "is no step"),
            ("retry", Status.SUSPENDED, {"kind": EntryKind.VALUE}, "is no step"),
            ("give", Status.SUSPENDED, {"status": EntryStatus.SUCCESSFUL}, "was successful"),
            ("retry", Status.SUSPENDED, {"status": EntryStatus.FAILED}, "rewind to it"),
            ("retry", Status.SUSPENDED, {"kind": EntryKind.SPAWN, "status": EntryStatus.WAITING}, "has not failed"),
            ("give", Status.SUCCESSFUL, {}, "has ended"),
            ("retry", Status.CANCELLED, {}, "has ended"),
            ("skip", Status.SUSPENDED, {}, "is no wait"),
            ("skip", Status.SUSPENDED, {"kind": EntryKind.SLEEP, "status": EntryStatus.SUCCESSFUL}, "is over"),
            ("skip", Status.FAILED, {"kind": EntryKind.SLEEP, "status": EntryStatus.WAITING}, "requeue it first"),
            ("rewind", Status.SUCCESSFUL, {}, "was successful"),
        ],
    )
    def test_change_that_does_not_fit_is_refused(
        self, bench: Bench, verb: str, status: Status, changes: dict[str, Any], reason: str
    ) -> None:
        pk = waiting_for_retry(bench, status, **changes)

        with pytest.raises(ChangeRefused, match=reason):
            change(bench, verb, pk)

        assert (bench.status(pk), len(names(bench, pk))) == (status, 2)

    def test_rewind_past_a_compensation_that_has_run_is_refused(self, bench: Bench) -> None:
        claimed = bench.running()
        entries = [entry("refund", kind=EntryKind.COMPENSATION), entry("charge", status=EntryStatus.RETRYING)]
        bench.commit(outcome(claimed, Status.FAILED, inner_state="{}", effects=Effects(journal=entries)))

        with pytest.raises(ChangeRefused, match="refund has run"):
            bench.engine.journal.rewind(claimed.id, "charge")

        bench.engine.journal.rewind(claimed.id, "refund")
        assert names(bench, claimed.id) == []

    def test_change_of_a_workflow_whose_key_is_taken_changes_nothing(self, bench: Bench) -> None:
        pk = waiting_for_retry(bench, Status.FAILED)
        bench.set(pk, key="one")
        bench.add(key="one")

        with pytest.raises(ChangeRefused, match="has the key"):
            bench.engine.journal.give(pk, "charge", "1")

        assert only(bench, pk).status == EntryStatus.RETRYING


def change(bench: Bench, verb: str, pk: UUID, name: str = "charge") -> None:
    arguments = (pk, name, "1") if verb == "give" else (pk, name)
    getattr(bench.engine.journal, verb)(*arguments)

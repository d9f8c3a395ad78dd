"""The journal of a workflow on every engine: read it, and record calls while the claim is held."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.exceptions import ClaimLost, TaskFinished
from jobqueue.models import JournalEntry, Task
from jobqueue.values.journal import Entry, EntryKind, EntryStatus, Restart
from jobqueue.values.records import ClaimedTask, Effects, NewMessage
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, new, outcome, success

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def entry(name: str = "charge", **changes: Any) -> Entry:
    values: dict[str, Any] = {"name": name, "kind": EntryKind.STEP, "status": EntryStatus.SUCCESSFUL}
    return Entry(**values | changes)


def names(bench: Bench, pk: Any) -> list[str]:
    return [entry.name for entry in bench.engine.journal.read(pk).entries]


def seconds(start: datetime | None, end: datetime | None) -> float:
    assert start is not None
    assert end is not None
    return (end - start).total_seconds()


def test_recorded_entry_is_read_with_all_its_columns(bench: Bench) -> None:
    claimed, child = bench.running(), uuid4()
    written = entry(
        arguments="[1]", digest="0123456789abcdef", value='{"a":[1,null]}', error=ERROR, attempts=2, child_id=child
    )
    bench.engine.journal.record(claimed, bench.executor_id, [written])

    journal = bench.engine.journal.read(claimed.id)
    (read,) = journal.entries

    assert not journal.is_cancel_requested
    assert (read.name, read.kind, read.status) == ("charge", EntryKind.STEP, EntryStatus.SUCCESSFUL)
    assert (read.digest, read.attempts, read.child_id) == ("0123456789abcdef", 2, child)
    row = JournalEntry.objects.using(bench.engine.database).get(task_id=claimed.id)
    assert (row.arguments, row.value, row.error) == ([1], {"a": [1, None]}, json.loads(ERROR))


def test_times_of_an_entry_come_from_the_database(bench: Bench) -> None:
    claimed = bench.running()
    before = bench.engine.db.now()
    bench.engine.journal.record(claimed, bench.executor_id, [entry(run_seconds=60.0)])
    bench.engine.journal.record(
        claimed, bench.executor_id, [entry("sleep", status=EntryStatus.WAITING, due_seconds=60.0)]
    )

    step, sleep = bench.engine.journal.read(claimed.id).entries

    assert step.finished_at is not None
    assert step.finished_at >= before
    assert seconds(step.started_at, step.finished_at) == pytest.approx(60)
    assert sleep.finished_at is None
    assert seconds(sleep.started_at, sleep.due_at) == pytest.approx(60)


def test_entry_replaces_the_one_of_its_name_and_keeps_its_place(bench: Bench) -> None:
    claimed = bench.running()
    first = entry("sleep", kind=EntryKind.SLEEP, status=EntryStatus.WAITING)
    bench.engine.journal.record(claimed, bench.executor_id, [first, entry("b"), entry("c")])
    bench.engine.journal.record(claimed, bench.executor_id, [entry("d"), entry("sleep", value="1")])

    entries = bench.engine.journal.read(claimed.id).entries

    assert [entry.name for entry in entries] == ["sleep", "b", "c", "d"]
    assert (entries[0].status, entries[0].value) == (EntryStatus.SUCCESSFUL, "1")


def test_two_tasks_may_have_entries_of_one_name(bench: Bench) -> None:
    first, other = bench.running(), bench.running()
    bench.engine.journal.record(first, bench.executor_id, [entry(value="1")])
    bench.engine.journal.record(other, bench.executor_id, [entry(value="2")])

    assert [e.value for e in bench.engine.journal.read(first.id).entries] == ["1"]
    assert [e.value for e in bench.engine.journal.read(other.id).entries] == ["2"]


@pytest.mark.parametrize("lost", ["number", "executor", "ended", "released", "gone"])
def test_executor_without_the_claim_records_nothing(bench: Bench, lost: str) -> None:
    claimed = bench.running()
    executor_id = bench.executor_id
    if lost == "number":
        bench.set(claimed.id, claim_number=claimed.claim_number + 1)
    if lost == "executor":
        executor_id = uuid4()
    if lost == "ended":
        bench.commit(outcome(claimed))
    if lost == "released":
        bench.engine.commits.release([claimed])
    if lost == "gone":
        bench.commit(outcome(claimed))
        bench.engine.tasks.delete([claimed.id])

    with pytest.raises(ClaimLost):
        bench.engine.journal.record(claimed, executor_id, [entry()])

    assert names(bench, claimed.id) == []


def test_journal_says_whether_a_cancel_was_requested(bench: Bench) -> None:
    claimed = bench.running()
    assert bench.engine.tasks.cancel([claimed.id]).requested == 1

    assert bench.engine.journal.read(claimed.id).is_cancel_requested
    assert bench.status(claimed.id) == Status.RUNNING


def test_journal_of_an_unknown_task_is_empty(bench: Bench) -> None:
    journal = bench.engine.journal.read(uuid4())

    assert (list(journal.entries), journal.is_cancel_requested) == ([], False)


def test_last_of_two_entries_of_one_name_is_recorded(bench: Bench) -> None:
    claimed = bench.running()
    bench.engine.journal.record(claimed, bench.executor_id, [entry(value="1"), entry("b"), entry(value="2")])

    assert [(e.name, e.value) for e in bench.engine.journal.read(claimed.id).entries] == [("charge", "2"), ("b", None)]


def test_record_performs_effects_and_wakes_receivers(bench: Bench) -> None:
    claimed, receiver = bench.running(), bench.suspended()
    (number,) = bench.send(claimed.id, "read")
    child = new()
    effects = Effects(consumed=[number], spawn=[child], send=[NewMessage(task_id=receiver, body="1")])

    bench.engine.journal.record(claimed, bench.executor_id, [entry()], effects)

    assert names(bench, claimed.id) == ["charge"]
    assert bench.inbox(claimed.id) == []
    assert bench.row(child.id).parent_id == claimed.id
    assert bench.bodies(receiver) == [1]
    assert bench.status(claimed.id) == Status.RUNNING


def test_lost_claim_performs_no_effects(bench: Bench) -> None:
    claimed, receiver, child = bench.running(), bench.suspended(), new()
    (number,) = bench.send(claimed.id)
    bench.engine.commits.release([claimed])
    effects = Effects(consumed=[number], spawn=[child], send=[NewMessage(task_id=receiver, body="1")])

    with pytest.raises(ClaimLost):
        bench.engine.journal.record(claimed, bench.executor_id, [entry()], effects)

    assert (len(bench.inbox(claimed.id)), bench.inbox(receiver)) == (1, [])
    assert not Task.objects.using(bench.engine.database).filter(pk=child.id).exists()


def test_refused_effect_leaves_no_entry(bench: Bench) -> None:
    claimed, receiver = bench.running(), bench.ended()

    with pytest.raises(TaskFinished):
        bench.engine.journal.record(
            claimed, bench.executor_id, [entry()], Effects(send=[NewMessage(task_id=receiver, body="1")])
        )

    assert names(bench, claimed.id) == []


class TestCommit:
    def test_commit_writes_and_deletes_entries_of_its_poll(self, bench: Bench) -> None:
        claimed, other = bench.running(), bench.running()
        bench.engine.journal.record(claimed, bench.executor_id, [entry("a"), entry("b")])
        bench.engine.journal.record(other, bench.executor_id, [entry("a")])

        bench.perform(claimed, journal=[entry("c"), entry("b", value="1")], forget=["a"])

        assert [(e.name, e.value) for e in bench.engine.journal.read(claimed.id).entries] == [("b", "1"), ("c", None)]
        assert names(bench, other.id) == ["a"]
        assert bench.status(claimed.id) == Status.SUSPENDED

    def test_many_tasks_write_their_journals_in_one_commit(self, bench: Bench) -> None:
        claims = [bench.running() for _ in range(3)]
        waits = [entry(f"sleep#{n}", status=EntryStatus.WAITING, due_seconds=5.0) for n in range(2)]

        bench.commit(
            *(outcome(c, Status.SUSPENDED, has_succeeded=True, effects=Effects(journal=waits)) for c in claims)
        )

        assert [names(bench, c.id) for c in claims] == [["sleep#0", "sleep#1"]] * 3

    def test_lost_claim_commits_no_entries(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.commits.release([claimed])

        answer = bench.perform(claimed, journal=[entry()])

        assert answer.lost == {claimed.id}
        assert names(bench, claimed.id) == []

    def test_restart_begins_a_new_journal_with_other_arguments(self, bench: Bench) -> None:
        claimed = bench.running(args="[1]")
        bench.send(claimed.id, "unread")
        bench.engine.journal.record(claimed, bench.executor_id, [entry()])

        bench.commit(
            outcome(
                claimed,
                Status.READY,
                has_succeeded=True,
                effects=Effects(restart=Restart("[2]", '{"a":3}'), journal=[entry("first")]),
            )
        )

        row = bench.row(claimed.id)
        assert (row.args, row.kwargs, row.status) == ([2], {"a": 3}, Status.READY)
        assert names(bench, claimed.id) == ["first"]
        assert bench.bodies(claimed.id) == ["unread"]


def compensating(bench: Bench, kind: EntryKind = EntryKind.COMPENSATION, **changes: Any) -> ClaimedTask:
    """Return a RUNNING workflow with an open compensation."""
    claimed = bench.running()
    values: dict[str, Any] = {"status": EntryStatus.WAITING} | changes
    bench.engine.journal.record(claimed, bench.executor_id, [entry("refund", kind=kind, **values)])
    return claimed


class TestCancel:
    @pytest.mark.parametrize("kind", [EntryKind.COMPENSATION, EntryKind.SHIELD, EntryKind.CANCEL])
    def test_cancel_of_a_workflow_that_waits_makes_it_ready(self, bench: Bench, kind: EntryKind) -> None:
        claimed = compensating(bench, kind)
        bench.perform(claimed)

        report = bench.engine.tasks.cancel([claimed.id])

        assert (report.cancelled, report.requested) == (0, 1)
        assert report.parents == {claimed.id}
        assert bench.status(claimed.id) == Status.READY
        assert bench.engine.journal.read(claimed.id).is_cancel_requested

    @pytest.mark.parametrize("status", [EntryStatus.SUCCESSFUL, EntryStatus.SKIPPED])
    def test_cancel_of_a_workflow_without_open_compensation_ends_it(self, bench: Bench, status: EntryStatus) -> None:
        claimed = compensating(bench, status=status)
        bench.perform(claimed)

        assert bench.engine.tasks.cancel([claimed.id]).cancelled == 1

        assert bench.status(claimed.id) == Status.CANCELLED

    def test_cancel_ends_the_backoff_of_a_workflow_once(self, bench: Bench) -> None:
        claimed = compensating(bench)
        bench.commit(outcome(claimed, Status.SCHEDULED, wake_after_seconds=60.0))

        bench.engine.tasks.cancel([claimed.id])
        assert bench.status(claimed.id) == Status.READY

        (again,) = bench.claim(queues=[bench.row(claimed.id).queue_name])
        bench.commit(outcome(again, Status.SCHEDULED, wake_after_seconds=60.0, effects=Effects(finishes_itself=True)))
        bench.engine.tasks.cancel([claimed.id])
        assert bench.status(claimed.id) == Status.SCHEDULED

    @pytest.mark.parametrize(
        ("status", "entered"),
        [(Status.SUSPENDED, Status.READY), (Status.SCHEDULED, Status.SCHEDULED), (Status.READY, Status.READY)],
    )
    def test_poll_that_did_not_know_of_the_cancel_runs_again(
        self, bench: Bench, status: Status, entered: Status
    ) -> None:
        claimed = compensating(bench)
        bench.engine.tasks.cancel([claimed.id])

        answer = bench.commit(outcome(claimed, status, wake_after_seconds=60.0, has_succeeded=True))

        assert answer.done == {claimed.id: entered}
        assert bench.status(claimed.id) == entered
        assert bench.engine.journal.read(claimed.id).is_cancel_requested

    def test_poll_that_opens_a_compensation_defers_the_cancel(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.tasks.cancel([claimed.id])

        bench.perform(claimed, journal=[entry("refund", kind=EntryKind.COMPENSATION, status=EntryStatus.WAITING)])

        assert bench.status(claimed.id) == Status.READY

    def test_outcome_that_knows_of_the_cancel_stays_as_it_is(self, bench: Bench) -> None:
        claimed = compensating(bench)
        bench.engine.tasks.cancel([claimed.id])

        bench.perform(claimed, finishes_itself=True)

        assert bench.status(claimed.id) == Status.SUSPENDED

    def test_released_workflow_with_open_compensation_is_not_cancelled(self, bench: Bench) -> None:
        claimed, plain = compensating(bench), bench.running()
        bench.engine.tasks.cancel([claimed.id, plain.id])

        answer = bench.engine.commits.release([claimed, plain])

        assert answer.done == {claimed.id: Status.READY, plain.id: Status.CANCELLED}
        assert (bench.status(claimed.id), bench.status(plain.id)) == (Status.READY, Status.CANCELLED)

    def test_cancel_waits_for_the_run_that_may_open_a_compensation(self, bench: Bench) -> None:
        """The executor may have died between a recorded step and the compensation of the step."""
        claimed = bench.running()
        bench.engine.journal.record(claimed, bench.executor_id, [entry("charge")])
        bench.engine.commits.release([claimed])

        bench.engine.tasks.cancel([claimed.id])

        assert bench.status(claimed.id) == Status.READY
        (again,) = bench.claim(queues=[bench.row(claimed.id).queue_name])
        bench.engine.commits.release([again])
        assert bench.status(claimed.id) == Status.READY

    def test_rescue_of_a_cancelled_workflow_with_steps_runs_it_again(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.journal.record(claimed, bench.executor_id, [entry("charge")])
        bench.engine.tasks.cancel([claimed.id])
        bench.time_passes(120)

        assert [rescued.status for rescued in bench.engine.executors.rescue()] == [Status.READY]

    def test_rescued_workflow_with_open_compensation_is_not_cancelled(self, bench: Bench) -> None:
        claimed = compensating(bench)
        plain = bench.running()
        bench.engine.tasks.cancel([claimed.id, plain.id])
        bench.time_passes(120)

        assert {r.id: r.status for r in bench.engine.executors.rescue()} == {
            claimed.id: Status.READY,
            plain.id: Status.CANCELLED,
        }

    def test_end_of_a_parent_asks_a_compensating_child(self, bench: Bench) -> None:
        parent = bench.running()
        child = compensating(bench)
        bench.set(child.id, parent_id=parent.id)
        bench.perform(child)

        bench.commit(outcome(parent, effects=Effects(cancel_children=True)))

        assert bench.status(child.id) == Status.READY
        assert bench.engine.journal.read(child.id).is_cancel_requested

    def test_child_that_commits_beside_the_end_of_its_parent_is_asked(self, bench: Bench) -> None:
        parent = bench.running()
        child = compensating(bench)
        bench.set(child.id, parent_id=parent.id)

        bench.commit(
            outcome(parent, effects=Effects(cancel_children=True)),
            outcome(child, Status.SUSPENDED, has_succeeded=True, parent_id=parent.id, effects=Effects()),
        )

        assert bench.status(child.id) == Status.READY
        assert bench.engine.journal.read(child.id).is_cancel_requested

    @pytest.mark.parametrize("is_running", [True, False])
    def test_cancel_at_once_ends_a_workflow_without_compensation(self, bench: Bench, is_running: bool) -> None:
        claimed = compensating(bench)
        if not is_running:
            bench.perform(claimed)

        assert bench.engine.tasks.cancel([claimed.id], at_once=True).cancelled == 1

        row = bench.row(claimed.id)
        assert (row.status, row.executor_id, row.claimed_at) == (Status.CANCELLED, None, None)
        with pytest.raises(ClaimLost):
            bench.engine.journal.record(claimed, bench.executor_id, [entry()])
        assert bench.perform(claimed).lost == {claimed.id}


class TestRetention:
    def journaled(self, bench: Bench, status: Status, **changes: Any) -> UUID:
        claimed = bench.running()
        bench.engine.journal.record(claimed, bench.executor_id, [entry()])
        bench.commit(outcome(claimed, status, **changes))
        return claimed.id

    def count(self, bench: Bench) -> int:
        return JournalEntry.objects.using(bench.engine.database).count()

    @pytest.mark.parametrize(
        ("status", "changes"),
        [
            (Status.SUCCESSFUL, {"inner_state": '{"code":"1"}'}),
            (Status.FAILED, {}),
            (Status.CANCELLED, {}),
        ],
    )
    def test_journal_is_pruned_with_its_task(self, bench: Bench, status: Status, changes: dict[str, Any]) -> None:
        pk = self.journaled(bench, status, **changes)
        kept = self.journaled(bench, Status.SUSPENDED)
        short = bench.with_options(retention={status: 0.0})

        assert short.engine.tasks.prune() == 1

        assert not Task.objects.using(bench.engine.database).filter(pk=pk).exists()
        assert list(JournalEntry.objects.using(bench.engine.database).values_list("task_id", flat=True)) == [kept]

    def test_prune_of_plain_tasks_reads_no_journal(self, bench: Bench) -> None:
        for _ in range(3):
            bench.commit(success(bench.running()))
        short = bench.with_options(retention={"SUCCESSFUL": 0.0})

        with CaptureQueriesContext(connections[bench.engine.database]) as queries:
            assert short.engine.tasks.prune() == 3

        assert not [query for query in queries if "jobqueue_journalentry" in query["sql"]]

    def test_deleted_task_leaves_no_journal(self, bench: Bench) -> None:
        pk = self.journaled(bench, Status.FAILED)

        assert bench.engine.tasks.delete([pk]).changed == 1

        assert self.count(bench) == 0

    def test_journal_too_large_for_prune_is_deleted_in_parts(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.journal.record(claimed, bench.executor_id, [entry(f"step#{n}") for n in range(5)])
        bench.commit(outcome(claimed, Status.FAILED))
        short = bench.with_options(retention={"FAILED": 0.0})

        assert short.engine.tasks.prune_messages(2) == 2

        assert self.count(bench) == 3


def test_record_returns_whether_a_cancel_was_requested(bench: Bench) -> None:
    claimed = bench.running()
    assert bench.engine.journal.record(claimed, bench.executor_id, [entry()]) is False
    bench.engine.tasks.cancel([claimed.id])

    assert bench.engine.journal.record(claimed, bench.executor_id, [entry("b")]) is True
    assert bench.engine.journal.record(claimed, bench.executor_id, [entry("c")], Effects()) is True


def test_workflow_that_has_recorded_a_call_is_not_replaced(bench: Bench) -> None:
    claimed = bench.running(key="one")
    bench.engine.journal.record(claimed, bench.executor_id, [entry()])
    bench.engine.commits.release([claimed])

    pk = bench.add(key="one", on_conflict="replace", args="[2]")

    assert pk != claimed.id
    assert (bench.row(claimed.id).args, bench.row(claimed.id).taken_over_by_id) == ([], pk)

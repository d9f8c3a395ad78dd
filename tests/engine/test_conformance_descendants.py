"""Cancellation of descendants: cancel(tree=True) and cancel_children, on every engine."""

from typing import Any

import pytest

from jobqueue.values.changes import CancelReport
from jobqueue.values.records import ClaimedTask, CommitResult, Effects, Outcome
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

SUSPENDED, SUCCESSFUL, CANCELLED = Status.SUSPENDED, Status.SUCCESSFUL, Status.CANCELLED


def done(claimed: ClaimedTask, **effects: Any) -> Outcome:
    return outcome(claimed, SUCCESSFUL, has_succeeded=True, return_value="1", effects=Effects(**effects))


def cancel_tree(bench: Bench, parent: ClaimedTask) -> None:
    bench.engine.tasks.cancel([parent.id], tree=True)


def end_with_children(bench: Bench, parent: ClaimedTask) -> None:
    assert bench.commit(done(parent, cancel_children=True)).done == {parent.id: SUCCESSFUL}


@pytest.mark.parametrize("end", [cancel_tree, end_with_children])
def test_live_descendants_of_finished_child_are_cancelled(bench: Bench, end: Any) -> None:
    parent = bench.running()
    finished_child = bench.ended(parent_id=bench.ended(parent_id=parent.id))
    children = [bench.add(parent_id=finished_child) for _ in range(2)]
    grandchild = bench.add(parent_id=children[0])

    end(bench, parent)

    assert [bench.status(pk) for pk in (*children, grandchild)] == [CANCELLED] * 3
    assert bench.status(finished_child) == SUCCESSFUL


def test_cancel_leaves_and_reports_forbidden_tasks(bench: Bench) -> None:
    parent = bench.running().id
    child = bench.add(parent_id=parent, queue_name="others")
    grandchild = bench.add(parent_id=child)

    report = bench.engine.tasks.cancel([parent], tree=True, may=lambda row: row.queue_name != "others")

    assert report == CancelReport(cancelled=1, requested=1, parents=frozenset({child}), not_allowed=frozenset({child}))
    assert [bench.status(pk) for pk in (child, grandchild)] == [Status.READY, CANCELLED]


def test_cancel_of_finished_task_cancels_its_children(bench: Bench) -> None:
    parent = bench.ended()
    child = bench.add(parent_id=parent)

    report = bench.engine.tasks.cancel([parent], tree=True)

    assert (report.cancelled, report.skipped) == (1, 1)
    assert bench.status(child) == CANCELLED


def test_descendants_are_found_over_many_queries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.engine.tasks.PARENTS_PER_QUERY", 2)
    parent = bench.running()
    children = [bench.add(parent_id=parent.id) for _ in range(5)]
    grandchildren = [bench.add(parent_id=pk) for pk in children]

    assert bench.engine.tasks.descendants([parent.id]) == {*children, *grandchildren}
    assert bench.engine.tasks.descendants([parent.id, *children]) == {*children, *grandchildren}
    assert bench.engine.tasks.descendants(grandchildren) == bench.engine.tasks.descendants([]) == set()


def test_child_spawned_by_done_with_cancel_children_is_cancelled(bench: Bench) -> None:
    parent = bench.running()
    child = new(parent_id=parent.id)

    bench.commit(done(parent, spawn=[child], cancel_children=True))

    row = bench.row(child.id)
    assert (bench.status(parent.id), row.status) == (SUCCESSFUL, CANCELLED)
    assert row.finished_at is not None
    assert bench.inbox(parent.id) == []


@pytest.mark.parametrize("tree", [False, True])
def test_child_spawned_after_cancel_request_is_cancelled(bench: Bench, tree: bool) -> None:
    """The cancel could not find the child, which did not exist yet."""
    claimed = bench.running()
    child = new(parent_id=claimed.id)
    bench.engine.tasks.cancel([claimed.id], tree=tree)

    bench.commit(done(claimed, spawn=[child]))

    assert (bench.status(claimed.id), bench.status(child.id)) == (SUCCESSFUL, CANCELLED)


class TestInOneCommit:
    """An executor may commit a child in one batch with the parent that cancels it."""

    def commit(self, bench: Bench, parent: ClaimedTask, child: Outcome) -> CommitResult:
        return bench.commit(done(parent, cancel_children=True), child)

    @pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, SUSPENDED])
    def test_unfinished_child_is_cancelled_with_its_parent(self, bench: Bench, status: Status) -> None:
        parent = bench.running()
        child = bench.running(parent_id=parent.id)
        grandchild = new(parent_id=child.id)
        effects = Effects(spawn=[grandchild])

        answer = self.commit(bench, parent, outcome(child, status, has_succeeded=True, effects=effects))

        assert answer.done == {parent.id: SUCCESSFUL, child.id: CANCELLED}
        assert bench.status(child.id) == CANCELLED
        assert bench.row(child.id).finished_at is not None
        assert not bench.engine.db.tasks.filter(pk=grandchild.id).exists()

    def test_finished_child_keeps_outcome_and_its_child_is_cancelled(self, bench: Bench) -> None:
        parent = bench.running()
        child = bench.running(parent_id=parent.id)
        grandchild = new(parent_id=child.id)

        self.commit(bench, parent, done(child, spawn=[grandchild]))

        assert (bench.status(child.id), bench.status(grandchild.id)) == (SUCCESSFUL, CANCELLED)

    def test_child_of_parent_with_lost_claim_continues(self, bench: Bench) -> None:
        parent = bench.running()
        child = bench.running(parent_id=parent.id)
        bench.set(parent.id, claim_number=99)

        answer = self.commit(bench, parent, outcome(child, SUSPENDED, has_succeeded=True))

        assert answer.done == {child.id: SUSPENDED}

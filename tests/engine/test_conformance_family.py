"""Who ends with whom: cancel(tree=True) and cancel_children, on every engine."""

from typing import Any

import pytest

from jobqueue.records import CancelReport, ClaimedTask, CommitResult, Effects, Outcome, Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

SUSPENDED, SUCCESSFUL, CANCELLED = Status.SUSPENDED, Status.SUCCESSFUL, Status.CANCELLED


def done(claimed: ClaimedTask, **effects: Any) -> Outcome:
    return outcome(claimed, SUCCESSFUL, is_good_poll=True, return_value="1", effects=Effects(**effects))


def cancel_tree(bench: Bench, head: ClaimedTask) -> None:
    bench.engine.cancel([head.id], tree=True)


def end_with_children(bench: Bench, head: ClaimedTask) -> None:
    assert bench.commit(done(head, cancel_children=True)).done == {head.id: SUCCESSFUL}


@pytest.mark.parametrize("end", [cancel_tree, end_with_children])
def test_the_living_below_one_that_has_ended_end_too(bench: Bench, end: Any) -> None:
    head = bench.running()
    orphan_of = bench.ended(parent_id=bench.ended(parent_id=head.id))
    orphans = [bench.add(parent_id=orphan_of) for _ in range(2)]
    below = bench.add(parent_id=orphans[0])

    end(bench, head)

    assert [bench.status(pk) for pk in (*orphans, below)] == [CANCELLED] * 3
    assert bench.status(orphan_of) == SUCCESSFUL


def test_what_may_not_be_cancelled_is_left_and_named(bench: Bench) -> None:
    head = bench.running().id
    child = bench.add(parent_id=head, queue_name="others")
    grandchild = bench.add(parent_id=child)

    report = bench.engine.cancel([head], tree=True, may=lambda row: row.queue_name != "others")

    assert report == CancelReport(cancelled=1, requested=1, parents=frozenset({child}), not_allowed=frozenset({child}))
    assert [bench.status(pk) for pk in (child, grandchild)] == [Status.READY, CANCELLED]


def test_a_tree_is_found_below_a_head_that_has_ended(bench: Bench) -> None:
    head = bench.ended()
    child = bench.add(parent_id=head)

    report = bench.engine.cancel([head], tree=True)

    assert (report.cancelled, report.skipped) == (1, 1)
    assert bench.status(child) == CANCELLED


def test_a_family_of_more_than_one_statement_takes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.engine.portable.cancel.PARENTS_PER_QUERY", 2)
    head = bench.running()
    children = [bench.add(parent_id=head.id) for _ in range(5)]
    grandchildren = [bench.add(parent_id=pk) for pk in children]

    assert bench.engine.descendants([head.id]) == {*children, *grandchildren}
    assert bench.engine.descendants([head.id, *children]) == {*children, *grandchildren}
    assert bench.engine.descendants(grandchildren) == bench.engine.descendants([]) == set()


def test_what_a_task_spawns_that_ends_with_its_children_is_cancelled(bench: Bench) -> None:
    head = bench.running()
    child = new(parent_id=head.id)

    bench.commit(done(head, spawn=[child], cancel_children=True))

    row = bench.row(child.id)
    assert (bench.status(head.id), row.status) == (SUCCESSFUL, CANCELLED)
    assert row.finished_at is not None
    assert bench.inbox(head.id) == []


@pytest.mark.parametrize("tree", [False, True])
def test_what_a_task_spawns_that_was_told_to_end_is_cancelled(bench: Bench, tree: bool) -> None:
    """Whoever cancelled it looked for its children when they were not there yet."""
    claimed = bench.running()
    child = new(parent_id=claimed.id)
    bench.engine.cancel([claimed.id], tree=tree)

    bench.commit(done(claimed, spawn=[child]))

    assert (bench.status(claimed.id), bench.status(child.id)) == (SUCCESSFUL, CANCELLED)


class TestInOneCommit:
    """An executor may commit a child together with the parent that ends with it."""

    def commit(self, bench: Bench, head: ClaimedTask, child: Outcome) -> CommitResult:
        return bench.commit(done(head, cancel_children=True), child)

    @pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, SUSPENDED])
    def test_child_that_would_live_on_is_cancelled(self, bench: Bench, status: Status) -> None:
        head = bench.running()
        child = bench.running(parent_id=head.id)
        grandchild = new(parent_id=child.id)
        effects = Effects(spawn=[grandchild])

        answer = self.commit(bench, head, outcome(child, status, is_good_poll=True, effects=effects))

        assert answer.done == {head.id: SUCCESSFUL, child.id: CANCELLED}
        assert bench.status(child.id) == CANCELLED
        assert bench.row(child.id).finished_at is not None
        assert not bench.engine.tasks.filter(pk=grandchild.id).exists()

    def test_child_that_ends_ends_so_and_what_it_spawned_is_cancelled(self, bench: Bench) -> None:
        head = bench.running()
        child = bench.running(parent_id=head.id)
        grandchild = new(parent_id=child.id)

        self.commit(bench, head, done(child, spawn=[grandchild]))

        assert (bench.status(child.id), bench.status(grandchild.id)) == (SUCCESSFUL, CANCELLED)

    def test_child_beside_a_head_whose_claim_is_lost_lives_on(self, bench: Bench) -> None:
        head = bench.running()
        child = bench.running(parent_id=head.id)
        bench.set(head.id, claim_number=99)

        answer = self.commit(bench, head, outcome(child, SUSPENDED, is_good_poll=True))

        assert answer.done == {child.id: SUSPENDED}

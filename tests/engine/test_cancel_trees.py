"""Cancel trees of which other sessions have locked a task: no task below it is cancelled before it."""

from __future__ import annotations

from uuid import UUID

import pytest

from jobqueue.values.changes import CancelReport
from jobqueue.values.records import Effects
from jobqueue.values.states import Status
from tests.engine.bench import Bench, outcome
from tests.engine.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)

READY, CANCELLED = Status.READY, Status.CANCELLED


@pytest.fixture
def bench(bench_on_server: Bench) -> Bench:
    return bench_on_server


@pytest.fixture
def chain(bench: Bench) -> list[UUID]:
    """Return a parent that runs, its child, its grandchild and the grandchild's child."""
    ids = [bench.running().id]
    for _ in range(3):
        ids.append(bench.add(parent_id=ids[-1]))
    return ids


def statuses(bench: Bench, ids: list[UUID]) -> list[str]:
    return [bench.status(pk) for pk in ids]


@pytest.mark.parametrize("strength", ["NO KEY UPDATE", "UPDATE"])
def test_cancel_of_a_locked_task_leaves_its_descendants(bench: Bench, chain: list[UUID], strength: str) -> None:
    with session() as stranger:
        stranger.lock(chain[0], strength=strength)
        report = bench.engine.tasks.cancel([chain[0]], tree=True, wait=False)

        assert report == CancelReport(busy=frozenset({chain[0]}))
        assert statuses(bench, chain[1:]) == [READY] * 3
    assert bench.inbox(chain[0]) == []

    report = bench.engine.tasks.cancel(report.busy, tree=True, wait=False)
    assert (report.cancelled, report.requested) == (3, 1)


def test_cancel_with_a_locked_middle_task_leaves_those_below(bench: Bench, chain: list[UUID]) -> None:
    with session() as stranger:
        stranger.lock(chain[1])
        report = bench.engine.tasks.cancel([chain[0]], tree=True, wait=False)

        assert report == CancelReport(requested=1, busy=frozenset({chain[1]}))
        assert statuses(bench, chain[2:]) == [READY] * 2

    bench.engine.tasks.cancel(report.busy, tree=True, wait=False)
    assert statuses(bench, chain[1:]) == [CANCELLED] * 3


def test_cancel_of_several_tasks_leaves_only_locked_trees(bench: Bench, chain: list[UUID]) -> None:
    """A requested task below a locked one waits for it, too: its parent would go on and read of its end."""
    other = bench.add()
    below_other = bench.add(parent_id=other)
    with session() as stranger:
        stranger.lock(chain[0])
        report = bench.engine.tasks.cancel([chain[0], chain[2], other], tree=True, wait=False)

    assert report == CancelReport(cancelled=2, parents=frozenset({other}), busy=frozenset({chain[0], chain[2]}))
    assert statuses(bench, [*chain[1:], other, below_other]) == [READY] * 3 + [CANCELLED] * 2


def test_cancel_after_a_locked_ended_task_reaches_those_below(bench: Bench) -> None:
    ended = bench.ended(Status.FAILED)
    child = bench.add(parent_id=ended)
    with session() as stranger:
        stranger.lock(ended, strength="UPDATE")
        report = bench.engine.tasks.cancel([ended], tree=True, wait=False)
        assert report.busy == {ended}
        assert bench.status(child) == READY

    bench.engine.tasks.cancel([ended], tree=True, wait=False)
    assert bench.status(child) == CANCELLED


def test_commit_that_cancels_children_below_a_locked_task_is_unknown(bench: Bench) -> None:
    """The grandchild would send a message to its FAILED parent, which another session has locked."""
    top = bench.running()
    child = bench.ended(Status.FAILED, parent_id=top.id)
    grandchild = bench.add(parent_id=child)
    free = bench.running()
    result = outcome(top, Status.SUCCESSFUL, has_succeeded=True, effects=Effects(cancel_children=True))
    with session() as stranger:
        stranger.lock(child, strength="UPDATE")
        answer = bench.commit(result, outcome(free))
        assert answer.unknown == {top.id}
        assert answer.done == {free.id: Status.SUCCESSFUL}

    assert bench.commit(result).done == {top.id: Status.SUCCESSFUL}
    assert bench.status(grandchild) == CANCELLED

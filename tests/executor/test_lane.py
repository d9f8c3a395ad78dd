"""The lines before threads and event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from jobqueue.exceptions import TaskCancelled
from jobqueue.executor import hold as hold_module
from jobqueue.executor import lane as lane_module
from jobqueue.executor.hold import Hold
from jobqueue.executor.lane import AHEAD_MOST, LOOKOUT_SECONDS, SHORT_SECONDS, LoopLane, ThreadLane
from jobqueue.models import Task
from jobqueue.records import ClaimRequest, Status
from tests.executor import tasks
from tests.executor.harness import (
    Running,
    Start,
    gates,
    in_line,
    make_claim,
    on_postgresql,
    row_of,
    wait_for,
    wait_until,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def asked() -> list[int]:
    """How many tasks each claim was for."""
    return []


@pytest.fixture
def listen(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> Callable[[Running], None]:
    def prepare(running: Running) -> None:
        make_demand = running.pulse._appetite.demand

        def demand(most: int, **situation: bool) -> ClaimRequest:
            made = make_demand(most, **situation)
            asked.append(made.limit)
            return made

        monkeypatch.setattr(running.pulse._appetite, "demand", demand)

    return prepare


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (lane_module, hold_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def holds(count: int) -> list[Hold]:
    return [Hold(make_claim()) for _ in range(count)]


def test_a_lane_starts_what_fits_and_keeps_the_order() -> None:
    started: list[Hold] = []
    lane = LoopLane(2, started.append)
    given = holds(5)

    lane.add(given)
    assert (started, lane.free) == (given[:2], -3)

    lane.left(given[1])
    assert (started, lane.free) == (given[:3], -2)


def test_nothing_is_claimed_ahead_before_anything_is_known() -> None:
    assert LoopLane(8, lambda hold: None).ahead() == 0


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.001, 200), (0.01, 20), (0.05, 4), (0.06, 0), (10.0, 0), (0.0, AHEAD_MOST)]
)
def test_as_many_are_claimed_ahead_as_will_start_soon(clock: Clock, seconds: float, ahead: int) -> None:
    lane = LoopLane(2, lambda hold: None)
    for hold in holds(10):
        lane.add([hold])
        clock.now += seconds
        lane.left(hold)

    assert lane.ahead() == pytest.approx(ahead, abs=1)


def test_a_slot_that_is_busy_for_long_counts_for_nothing(clock: Clock) -> None:
    lane = LoopLane(2, lambda hold: None)
    first, long, longer = holds(3)
    lane.add([first])
    clock.now += 0.01
    lane.left(first)
    assert lane.ahead() == 20

    lane.add([long])
    clock.now += 0.2
    assert lane.ahead() == 10
    lane.add([longer])
    clock.now += 0.2
    assert lane.ahead() == 0


def test_who_waited_too_long_is_taken_back(clock: Clock) -> None:
    lane = LoopLane(1, lambda hold: None)
    first, second = holds(2)
    lane.add([first, second])
    clock.now += 0.5
    (third,) = holds(1)
    lane.add([third])

    assert lane.take_back(1.0) == []
    clock.now += 0.5
    assert lane.take_back(1.0) == [second]  # what runs is not taken back
    assert lane.take_back() == [third]
    assert lane.free == 0


def test_who_was_told_to_stop_in_line_is_taken_back() -> None:
    lane = LoopLane(1, lambda hold: None)
    given = holds(3)
    lane.add(given)
    given[2].interrupt(TaskCancelled)

    assert lane.take_back(1.0) == [given[2]]


# --- in an executor


@on_postgresql
def test_threads_full_of_long_tasks_keep_no_async_task_from_running(start: Start) -> None:
    tasks.wait_at.enqueue_many([(("long",), {})] * 10)
    start(threads=2, async_slots=2)
    gates["long"].wait_for(2)

    for number in range(5):
        wait_until(tasks.add_later.enqueue(number), Status.SUCCESSFUL)


@on_postgresql
def test_an_event_loop_full_of_long_tasks_keeps_no_thread_from_running(start: Start) -> None:
    tasks.wait_later.enqueue_many([(("long",), {})] * 10)
    start(threads=2, async_slots=2)
    gates["long"].wait_for(2)

    for number in range(5):
        wait_until(tasks.add.enqueue(number), Status.SUCCESSFUL)


@on_postgresql
def test_a_backlog_of_one_kind_is_worked_off_without_polls(start: Start) -> None:
    """The claims that the other lane makes meanwhile find nothing, and say nothing about this one."""
    tasks.wait_at.using(priority=1).enqueue_many([(("first",), {})] * 2)
    tasks.add.enqueue_many([((number,), {}) for number in range(500)])
    running = start(threads=2, poll_interval=600.0)
    gates["first"].wait_for(2)
    wait_for(lambda: running.pulse.counts.turns > 10)

    gates["first"].open()

    wait_for(lambda: running.pulse.counts.finished == 502)


@on_postgresql
def test_no_more_than_fits_is_claimed_of_long_tasks(start: Start) -> None:
    long = tasks.wait_at.enqueue_many([(("long",), {})] * 10)
    later = tasks.wait_later.enqueue_many([(("long",), {})] * 10)
    running = start(threads=3, async_slots=4, poll_interval=0.05)
    gates["long"].wait_for(7)
    turns = running.pulse.counts.turns
    wait_for(lambda: running.pulse.counts.turns > turns + 3)

    assert sorted(row_of(result).claim_number for result in long) == [0] * 7 + [1] * 3
    assert sorted(row_of(result).claim_number for result in later) == [0] * 6 + [1] * 4


@on_postgresql
def test_long_tasks_claimed_in_place_of_async_ones_go_back_at_once(
    start: Start, asked: list[int], listen: Callable[[Running], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.executor.pulse.TAKE_BACK_SECONDS", 1000.0)
    tasks.add_later.using(priority=1).enqueue_many([((number,), {}) for number in range(30)])
    tasks.wait_at.enqueue_many([(("long", number), {}) for number in range(20)])

    running = start(threads=2, async_slots=40, prepare=listen)
    gates["long"].wait_for(2)

    wait_for(lambda: len(running.holds) == 2)
    assert max(asked) > 30  # once it is known that they need no threads
    assert (Task.objects.running().count(), Task.objects.ready().count()) == (2, 18)


@on_postgresql
def test_async_tasks_claimed_in_place_of_short_ones_go_back_at_once(
    start: Start, asked: list[int], listen: Callable[[Running], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.executor.pulse.TAKE_BACK_SECONDS", 1000.0)
    monkeypatch.setattr(lane_module, "AHEAD_SECONDS", 1000.0)
    tasks.add.using(priority=1).enqueue_many([((number,), {}) for number in range(30)])
    tasks.wait_later.enqueue_many([(("long",), {})] * 20)

    running = start(threads=2, async_slots=4, prepare=listen)
    gates["long"].wait_for(4)

    wait_for(lambda: len(running.holds) == 4)
    assert max(asked) > 50  # once it is known that all are for threads
    assert (Task.objects.running().count(), Task.objects.ready().count()) == (4, 16)


@on_postgresql
def test_what_waits_in_line_for_a_second_goes_back_and_stays_there(start: Start) -> None:
    running, result = in_line(start)
    rank = row_of(result).rank

    row = wait_until(result, Status.READY)

    assert (row.rank, row.attempts, row.worker_ids, row.executor_id) == (rank, 0, [], None)
    # Its slot is known to be busy now: this executor does not take it again.
    turns = running.pulse.counts.turns
    wait_for(lambda: running.pulse.counts.turns > turns + 3)
    assert row_of(result).claim_number == 1
    gates["in line"].open()
    gates["long"].open()
    assert wait_until(result, Status.SUCCESSFUL).claim_number == 2


# --- threads that take their tasks themselves


def test_short_tasks_are_left_to_the_thread_that_is_at_work(clock: Clock) -> None:
    lane = ThreadLane(2)
    lane._median_seconds = SHORT_SECONDS / 2
    taken: SimpleQueue[Hold | None] = SimpleQueue()
    given = holds(3)
    lane.add(given)
    first = lane.next()
    assert first is given[0]
    other = threading.Thread(target=lambda: taken.put(lane.next()), daemon=True)
    other.start()
    wait_for(lambda: lane._lookouts == 1)

    lane.leave(first)
    assert lane.next() is given[1]
    clock.now += 2 * LOOKOUT_SECONDS  # what we took does not end
    assert taken.get(timeout=10.0) is given[2]
    other.join()


def test_a_closed_lane_sends_threads_home_when_it_is_empty() -> None:
    lane = ThreadLane(1)
    given = holds(1)
    lane.add(given)
    lane.close()

    assert lane.next() is given[0]
    lane.leave(given[0])
    assert lane.next() is None


@on_postgresql
def test_no_short_task_waits_behind_a_long_one_while_a_thread_is_idle(start: Start) -> None:
    tasks.add.enqueue_many([((number,), {}) for number in range(400)])
    running = start(threads=3)
    wait_for(lambda: running.pulse.counts.finished == 400)
    assert running.pulse.crew.in_threads._median_seconds < SHORT_SECONDS

    tasks.wait_at.using(priority=1).enqueue_many([(("long",), {})] * 2)
    short = tasks.add.enqueue_many([((number,), {}) for number in range(50)])
    gates["long"].wait_for(2)

    for result in short:
        wait_until(result, Status.SUCCESSFUL)

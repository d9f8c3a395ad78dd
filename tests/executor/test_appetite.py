"""How much is claimed, of what, and when: without a database, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from jobqueue.executor import appetite as appetite_module
from jobqueue.executor.appetite import BUSY_SECONDS, LOOK_AGAIN_SECONDS, NEVER, QUEUES_SECONDS, Appetite
from jobqueue.executor.hold import Hold
from jobqueue.executor.room import Room
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.suspects import Suspects
from jobqueue.records import ClaimedBatch, ClaimRequest
from tests.executor.harness import make_claim

POLL_SECONDS = 10.0
MANY = 1_000_000


def claims_of(
    count: int, *, busy: Collection[str] = (), is_cut: bool = False, task_types: Sequence[str] = ("sync",)
) -> ClaimedBatch:
    claims = ClaimedBatch(make_claim(task_type=task_types[number % len(task_types)]) for number in range(count))
    claims.busy, claims.is_cut = frozenset(busy), is_cut
    return claims


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Situation:
    """An appetite, and all it looks at."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.threads, self.loop, self.coroutines = 8, 100, frozenset({"async"})
        self.ahead = self.loop_ahead = 0
        self.has_moved, self.threads_taken = True, 0
        self.queues = ["a", "b"]
        self.reads = 0
        self.limited: list[str] = []
        self.in_hand: list[Any] = []
        self.suspects = Suspects(30.0)
        lane = type("FakeLane", (), {"ahead": lambda _: self.ahead})
        crew = type(
            "FakeCrew",
            (),
            {
                "in_threads": property(lambda _: SimpleNamespace(free=self.threads, ahead=lane().ahead)),
                "on_loop": property(
                    lambda _: SimpleNamespace(free=self.loop, has_moved=self.has_moved, ahead=lambda: self.loop_ahead)
                ),
                "threads_taken": property(lambda _: self.threads_taken),
                "coroutines": property(lambda _: self.coroutines),
            },
        )
        engine: Any = SimpleNamespace(
            options=SimpleNamespace(poll_interval=POLL_SECONDS),
            queues_in_use=self._queues_in_use,
            limited_queues=lambda: self.limited,
        )
        self.appetite = Appetite(
            engine, ExecutorSettings(**settings), uuid4(), crew(), self.suspects, lambda: self.in_hand
        )

    def _queues_in_use(self) -> list[str]:
        self.reads += 1
        return self.queues

    def asks(self, most: int = MANY, *, is_alone: bool = False, is_convenient: bool = False) -> ClaimRequest:
        return self.appetite.demand(most, is_alone=is_alone, is_convenient=is_convenient)

    def claims(
        self,
        found: int = 0,
        *,
        took: float = 0.0,
        busy: Collection[str] = (),
        is_cut: bool = False,
        task_types: Sequence[str] = ("sync",),
        **changes: Any,
    ) -> ClaimRequest:
        """Make one claim, which finds so many."""
        demand, began_at = self.asks(**changes), self.clock.now
        self.clock.now += took
        claims = claims_of(found, busy=busy, is_cut=is_cut, task_types=task_types)
        self.appetite.claimed(demand, claims, began_at)
        return demand

    def waits(self, most: int = MANY) -> float:
        return self.appetite.wait_seconds(most, is_alone=False)

    def satisfied(self) -> Situation:
        self.claims()
        self.clock.now += LOOK_AGAIN_SECONDS
        self.claims()
        assert self.appetite.is_satisfied
        assert self.asks().limit == 0
        return self


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(appetite_module, "time", clock)
    monkeypatch.setattr(appetite_module, "random", SimpleNamespace(uniform=lambda low, high: 1.0))
    return clock


@pytest.fixture
def situation(clock: Clock) -> Situation:
    return Situation(clock)


# --- how much


@pytest.mark.parametrize(
    ("threads", "loop", "ahead", "limit", "only", "but"),
    [
        (8, 100, 0, 8, None, None),
        (8, 3, 0, 3, None, None),
        (8, 100, 50, 58, None, None),
        (-20, 100, 50, 30, None, None),
        (0, 100, 0, 100, ["async"], None),
        (-5, 100, 0, 100, ["async"], None),
        (8, 0, 4, 12, None, ["async"]),
        (0, 0, 0, 0, ["async"], None),
    ],
)
def test_no_more_is_asked_for_than_fits_whatever_kind_comes(
    situation: Situation, threads: int, loop: int, ahead: int, limit: int, only: Any, but: Any
) -> None:
    situation.threads, situation.loop, situation.ahead = threads, loop, ahead

    demand = situation.asks()

    assert (demand.limit, demand.only, demand.but, demand.suspects) == (limit, only, but, False)


def test_short_async_tasks_are_claimed_ahead_too(situation: Situation) -> None:
    situation.loop_ahead = 500
    assert situation.claims(8, task_types=["async"]).limit == 8
    assert situation.asks(is_convenient=True).limit == 600

    situation.threads, situation.loop = 0, -200
    assert (situation.asks().limit, situation.asks().only) == (300, ["async"])


def test_without_async_tasks_only_threads_count(situation: Situation) -> None:
    situation.coroutines, situation.loop = frozenset(), 0

    assert (situation.asks().limit, situation.asks().but) == (8, None)


@pytest.mark.parametrize(
    ("found", "task_types", "limit"),
    [(8, ["async"], 100), (8, ["async", "sync"], 8), (8, ["sync"], 8), (7, ["async"], 8)],
)
def test_as_many_as_the_loop_has_room_for_are_asked_for_once_all_are_for_it(
    situation: Situation, found: int, task_types: Sequence[str], limit: int
) -> None:
    situation.claims(found, task_types=task_types)
    assert situation.claims(50, is_convenient=True, task_types=["sync"]).limit == limit

    assert situation.appetite.room_in_threads == 8
    assert situation.asks(is_convenient=True).limit == 8


@pytest.mark.parametrize(
    ("found", "task_types", "limit"),
    [(100, ["sync"], 508), (100, ["sync", "async"], 100), (99, ["sync"], 100), (100, ["async"], 100)],
)
def test_as_many_as_the_threads_have_room_for_are_asked_for_once_all_are_for_them(
    situation: Situation, found: int, task_types: Sequence[str], limit: int
) -> None:
    situation.ahead = 500
    assert situation.claims(found, task_types=task_types).limit == 100
    assert situation.claims(508, is_convenient=True, task_types=["sync", "async"]).limit == limit

    assert (situation.appetite.room_in_threads, situation.appetite.room_on_loop) == (508, 100)
    assert situation.asks(is_convenient=True).limit == 100


def test_no_more_async_tasks_are_asked_for_than_threads_before_it_is_known_that_they_need_none(
    situation: Situation,
) -> None:
    """Each that calls the ORM opens a connection: a hundred at once are all that a server has."""
    situation.has_moved = False
    situation.claims(8, task_types=["async"])
    assert situation.asks(is_convenient=True).limit == 8

    situation.has_moved, situation.threads_taken = True, 8
    situation.claims(8, is_convenient=True, task_types=["async"])
    assert situation.asks(is_convenient=True).limit == 8

    situation.claims(8, is_convenient=True, task_types=["async"])
    assert situation.asks(is_convenient=True).limit == 100


def test_a_lane_that_took_all_there_was_is_not_asked_for_again_with_each_claim_of_the_others(
    situation: Situation, clock: Clock
) -> None:
    clock.now += LOOK_AGAIN_SECONDS
    situation.claims(8)
    situation.threads = 0
    assert situation.claims().only == ["async"]

    def claim_for_threads() -> int:
        """Claim for both, as many as fit; gives how many async tasks are asked for then."""
        situation.threads = 8
        assert situation.claims(8, is_convenient=True).only is None
        situation.threads = 0
        return situation.asks().limit

    assert [claim_for_threads() for _ in range(3)] == [0, 0, 0]
    clock.now += POLL_SECONDS
    assert claim_for_threads() == 100
    situation.claims()
    assert claim_for_threads() == 0
    situation.appetite.notice("a")
    clock.now += 0.001
    assert claim_for_threads() == 100
    situation.claims()
    assert claim_for_threads() == 100, "others may have been left out in the notice's time"


@pytest.mark.parametrize("most", [0, 5])
def test_no_more_is_asked_for_than_we_may_take(situation: Situation, most: int) -> None:
    assert situation.asks(most).limit == most
    assert situation.waits(most) == (NEVER if most == 0 else 0.0)


# --- when


def test_who_found_all_it_asked_for_asks_again_at_once(situation: Situation) -> None:
    situation.satisfied().appetite.hurry()
    demand = situation.claims(8)

    assert demand.limit == 8
    assert (situation.waits(), situation.asks().limit) == (0.0, 8)


def test_who_found_less_waits_for_the_poll(situation: Situation) -> None:
    situation.satisfied()

    assert situation.waits() == POLL_SECONDS
    situation.clock.now += POLL_SECONDS
    assert (situation.waits(), situation.asks().limit) == (0.0, 8)


def test_a_claim_is_made_when_the_database_is_asked_something_anyway(situation: Situation) -> None:
    assert situation.satisfied().asks(is_convenient=True).limit == 8


def test_a_notice_brings_a_claim_and_another_a_little_later(situation: Situation) -> None:
    situation.satisfied().clock.now += 1.0
    assert situation.appetite.notice("a")

    assert situation.waits() == 0.0
    situation.clock.now += 0.001
    situation.claims()
    assert situation.waits() == pytest.approx(LOOK_AGAIN_SECONDS - 0.001)
    situation.clock.now += LOOK_AGAIN_SECONDS
    situation.claims()
    assert situation.waits() == POLL_SECONDS


def test_a_notice_during_a_claim_is_not_lost(situation: Situation) -> None:
    situation.satisfied().clock.now += POLL_SECONDS
    demand, began_at = situation.asks(), situation.clock.now
    situation.clock.now += 0.001
    situation.appetite.notice("a")
    situation.clock.now += 0.001

    situation.appetite.claimed(demand, claims_of(0), began_at)

    assert situation.waits() == 0.0


def test_a_claim_that_failed_is_made_again(situation: Situation) -> None:
    situation.satisfied().appetite.hurry()
    situation.asks()  # and the database goes away

    assert situation.waits() == 0.0


def test_a_lane_that_had_no_room_stays_hungry(situation: Situation) -> None:
    situation.satisfied().appetite.hurry()
    situation.claims(8)
    situation.threads = 0
    assert situation.claims(0).only == ["async"]
    situation.threads = 8

    assert (situation.waits(), situation.asks().limit) == (0.0, 8)


def test_claims_that_pass_over_a_backlog_take_a_twentieth_of_the_time(situation: Situation) -> None:
    situation.threads = 0
    situation.claims(0, took=0.3)
    situation.appetite.notice("a")

    assert situation.asks(is_convenient=True).limit == 0
    assert situation.waits() == pytest.approx(6.0)
    situation.clock.now += 6.0
    assert situation.asks().limit == 100
    situation.threads = 8  # a claim of any kind takes the first it meets
    situation.clock.now -= 2.0
    assert situation.asks(is_convenient=True).limit == 8


# --- of which queues


def test_the_queues_in_use_are_read_once_a_second(situation: Situation) -> None:
    assert situation.asks().queues == ["a", "b"]
    situation.queues = ["c"]
    assert (situation.asks().queues, situation.reads) == (["a", "b"], 1)

    situation.clock.now += 1.0
    assert (situation.asks().queues, situation.reads) == (["c"], 2)


def test_a_queue_that_somebody_speaks_of_is_served_at_once(situation: Situation) -> None:
    situation.asks()
    situation.appetite.notice("new")

    assert situation.asks().queues == ["a", "b", "new"]


def test_a_notice_while_the_queues_are_read_is_not_lost(situation: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    read = situation.appetite._engine.queues_in_use

    def read_slowly() -> list[str]:
        queues = read()
        situation.appetite.notice("new")  # its task was committed behind our snapshot
        return queues

    monkeypatch.setattr(situation.appetite._engine, "queues_in_use", read_slowly)

    assert situation.asks().queues == ["a", "b", "new"]


def test_tasks_that_become_ready_may_be_of_any_queue(situation: Situation) -> None:
    situation.asks()
    situation.queues = ["retried"]
    situation.clock.now += 0.1

    situation.appetite.hurry()

    assert situation.asks().queues == ["retried"]


def test_only_the_queues_of_the_settings_are_served(clock: Clock) -> None:
    chosen = Situation(clock, queues=("a", "z"))

    assert not chosen.appetite.notice("b")
    assert chosen.appetite.notice("z")
    assert (chosen.asks().queues, chosen.reads) == (("a", "z"), 0)


# --- suspects


def test_who_makes_room_for_a_suspect_asks_for_nothing_else(situation: Situation) -> None:
    situation.suspects.seen(found=True)

    assert situation.asks(is_convenient=True).limit == 0
    assert situation.waits() == NEVER
    demand = situation.asks(is_alone=True)
    assert (demand.limit, demand.suspects, demand.only, demand.but) == (1, True, None, None)


def test_who_runs_a_suspect_asks_for_nothing(situation: Situation) -> None:
    situation.suspects.seen(found=True)
    situation.claims(1, is_alone=True)

    assert situation.asks(is_convenient=True).limit == 0
    situation.suspects.ended()
    assert situation.asks(is_alone=True).suspects  # the next one comes at once, if there is one
    situation.claims(0, is_alone=True)
    assert situation.asks(is_convenient=True).limit == 8


def test_who_found_no_suspect_goes_on(situation: Situation) -> None:
    situation.suspects.seen(found=True)
    situation.claims(0, is_alone=True)

    assert (situation.asks().limit, situation.asks().suspects) == (8, False)


def test_a_noticed_queue_is_looked_at_again_although_it_was_empty_in_between(
    situation: Situation, clock: Clock
) -> None:
    situation.satisfied()
    clock.now += QUEUES_SECONDS - 1.5 * LOOK_AGAIN_SECONDS
    situation.appetite.notice("a")
    situation.claims(1)
    situation.queues = []  # by now nothing is READY, and another task of the same notice is on its way
    clock.now += LOOK_AGAIN_SECONDS

    assert "a" in situation.claims().queues


# --- queues with limits


def hold(queue: str, *, is_started: bool = True) -> Hold:
    hold = Hold(make_claim(queue_name=queue))
    if is_started:
        hold.start(None)
    return hold


def test_process_takes_no_more_of_a_queue_than_it_may_run(clock: Clock) -> None:
    situation = Situation(clock, queues=("a", "b"), queue_limits={"a": 3})
    situation.in_hand = [hold("a"), hold("a"), hold("b")]
    demand = situation.asks()

    assert (demand.queues, demand.most, demand.limited) == (["a", "b"], {"a": 1}, [])

    situation.in_hand.append(hold("a", is_started=False))
    assert situation.asks().queues == ["b"]


def test_who_may_take_nothing_rests_until_room_is_made(clock: Clock) -> None:
    situation = Situation(clock, queues=("a",), queue_limits={"a": 1})
    situation.in_hand = [hold("a")]

    assert situation.asks().limit == 0
    clock.now += LOOK_AGAIN_SECONDS
    assert situation.asks().limit == 0
    assert situation.waits() == pytest.approx(POLL_SECONDS)

    situation.in_hand.clear()
    assert situation.appetite.grow()
    assert situation.asks().most == {"a": 1}


def test_of_a_queue_with_a_max_running_only_what_starts_at_once_is_claimed(situation: Situation) -> None:
    situation.limited, situation.threads, situation.ahead = ["a"], 3, 500
    demand = situation.asks()

    assert (demand.limit, demand.most, demand.limited) == (100, {"a": 3}, ["a"])


def test_one_may_wait_in_line_behind_tasks_of_other_queues(situation: Situation) -> None:
    situation.limited, situation.threads, situation.ahead = ["a"], -200, 500
    assert situation.asks().most == {"a": 1}

    situation.in_hand = [hold("a", is_started=False)]
    assert situation.asks().queues == ["b"]


def test_limits_are_looked_up_each_second(situation: Situation) -> None:
    assert not situation.asks().limited
    situation.limited = ["a"]
    assert not situation.asks().limited

    situation.clock.now += QUEUES_SECONDS
    assert situation.asks().limited == ["a"]


def test_of_a_queue_with_a_max_running_no_async_task_is_claimed_ahead(situation: Situation) -> None:
    situation.limited, situation.threads, situation.loop, situation.loop_ahead = ["a"], 0, 3, 500

    demand = situation.asks()
    assert (demand.limit, demand.only, demand.most) == (503, ["async"], {"a": 3})


def test_queue_that_another_claims_from_is_looked_at_again_soon(situation: Situation) -> None:
    situation.satisfied().clock.now += POLL_SECONDS
    situation.claims(busy=["a"])

    assert situation.waits() == pytest.approx(BUSY_SECONDS)


# --- room in them


def test_others_hear_of_room_that_we_cannot_fill(situation: Situation) -> None:
    situation.limited = ["a"]
    demand = situation.satisfied().asks(is_convenient=True)
    room = Room(situation.appetite)

    room.made("b")
    assert room.to_tell(demand, claims_of(0)) == set()
    room.made("a")
    assert room.to_tell(demand, claims_of(0)) == set()  # nothing waits
    room.made("a")
    assert room.to_tell(demand, claims_of(0, busy=["a"])) == {"a"}
    room.made("a")
    assert room.to_tell(demand, ClaimedBatch([make_claim(queue_name="a")])) == set()
    room.made("a")
    assert room.to_tell(demand, claims_of(demand.limit)) == {"a"}
    assert room.to_tell(demand, claims_of(0)) == set()


def test_room_is_ours_for_one_more_turn(situation: Situation) -> None:
    situation.limited = ["a"]
    nothing = situation.satisfied().asks()
    room = Room(situation.appetite)
    room.made("a")

    assert room.to_tell(nothing, ClaimedBatch()) == set()
    assert situation.waits() == 0.0
    assert room.to_tell(nothing, ClaimedBatch()) == {"a"}  # there was no room in the process


def test_room_below_a_limit_of_this_process_is_no_news_for_others(clock: Clock) -> None:
    situation = Situation(clock, queues=("a",), queue_limits={"a": 1}).satisfied()
    room = Room(situation.appetite)
    room.made("a")

    assert room.to_tell(situation.asks(), ClaimedBatch()) == set()
    assert room.to_tell(situation.asks(), claims_of(8)) == set()


def test_claim_that_was_cut_is_followed_by_another_at_once(situation: Situation) -> None:
    situation.satisfied()
    situation.clock.now += POLL_SECONDS
    situation.claims(found=1, is_cut=True)

    assert not situation.appetite.is_satisfied
    assert situation.waits() == 0.0

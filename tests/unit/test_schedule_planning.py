from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.schedules.expressions import Cron, Every
from jobqueue.schedules.planning import MAX_TICKS, Plan, Policy, Skipped, first_tick, make_plan
from jobqueue.values.policies import MAX_COUNTED, CatchUp, Overlap, SkipReason

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
FOREVER = datetime.max.replace(tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EACH_MINUTE = Every(minutes=1)
EACH_HOUR = Cron("0 * * * *", "UTC")


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def plan(policy: Policy, late: timedelta, *, waiting_at: datetime | None = None, **state: Any) -> Plan:
    """Plan the minute ticks from noon on, so much later than noon."""
    return make_plan(EACH_MINUTE, policy, NOON + late, next_at=NOON, waiting_at=waiting_at, **state)


def skips(result: Plan) -> list[tuple[int, SkipReason]]:
    """Return how many consecutive ticks were skipped, and why."""
    groups = groupby(result.skipped, key=lambda skipped: skipped.reason)
    return [(sum(skipped.count for skipped in group), reason) for reason, group in groups]


def test_tick_in_the_future_is_left_alone() -> None:
    assert plan(Policy(), -seconds(1)) == Plan((), None, (), NOON)


def test_due_tick_runs_and_the_next_one_follows() -> None:
    assert plan(Policy(), seconds(0)) == Plan((NOON,), None, (), NOON + MINUTE)


def test_delayed_schedule_runs_after_its_delay() -> None:
    policy = Policy(delay=seconds(20))

    assert plan(policy, seconds(19)).runs == ()
    assert plan(policy, seconds(20)).runs == (NOON,)


def test_tick_whose_jitter_is_cut_short_is_not_missed() -> None:
    policy = Policy(catch_up=CatchUp.NONE, delay=seconds(600))

    assert plan(policy, seconds(59)).runs == ()
    assert plan(policy, seconds(59), with_jitter=False) == Plan((NOON,), None, (), NOON + MINUTE)


def test_schedule_ends_with_its_last_tick() -> None:
    policy = Policy(ends_at=NOON + MINUTE / 2)

    assert plan(policy, seconds(1)) == Plan((NOON,), None, (), None)
    assert make_plan(EACH_MINUTE, policy, NOON + MINUTE, next_at=None) == Plan()


@pytest.mark.parametrize(
    ("policy", "runs", "missed"),
    [
        (Policy(), 1, 10),
        (Policy(catch_up=CatchUp.NONE), 0, 11),
        (Policy(catch_up=CatchUp.ALL, overlap=Overlap.ALLOW), 11, 0),
        (Policy(catch_up=CatchUp.ALL, overlap=Overlap.ALLOW, max_catch_up=4), 4, 7),
        (Policy(catch_up=CatchUp.ALL, overlap=Overlap.ALLOW, catch_up_window=timedelta(minutes=3)), 3, 8),
        (Policy(catch_up_window=seconds(30)), 0, 11),
    ],
)
def test_missed_ticks_are_made_up_for_as_the_policy_says(policy: Policy, runs: int, missed: int) -> None:
    result = plan(policy, 10 * MINUTE + seconds(45))

    assert len(result.runs) == runs
    assert sum(skipped.count for skipped in result.skipped) == missed
    assert result.runs in ((), tuple(NOON + MINUTE * minute for minute in range(11 - runs, 11)))
    assert result.next_at == NOON + 11 * MINUTE


def test_tick_on_time_runs_alone_after_a_downtime() -> None:
    result = plan(Policy(), 10 * MINUTE + seconds(1))

    assert result.runs == (NOON + 10 * MINUTE,)
    assert skips(result) == [(10, SkipReason.MISSED)]


def test_paused_schedule_skips_all_ticks_as_paused() -> None:
    result = plan(Policy(), 2 * MINUTE, paused_until=FOREVER)

    assert (result.runs, skips(result)) == ((), [(3, SkipReason.PAUSED)])


def test_ticks_after_the_end_of_a_pause_run() -> None:
    result = plan(Policy(), 2 * MINUTE, paused_until=NOON + 2 * MINUTE)

    assert (result.runs, skips(result)) == ((NOON + 2 * MINUTE,), [(2, SkipReason.PAUSED)])


@pytest.mark.parametrize(
    ("overlap", "runs", "waiting_at", "skipped"),
    [
        (Overlap.SKIP, (), None, [(1, SkipReason.OVERLAP)]),
        (Overlap.QUEUE_ONE, (), NOON, []),
        (Overlap.ALLOW, (NOON,), None, []),
        (Overlap.CANCEL_RUNNING, (NOON,), None, []),
    ],
)
def test_tick_meets_a_running_task(overlap, runs, waiting_at, skipped) -> None:
    result = plan(Policy(overlap), seconds(0), has_live_task=True)

    assert (result.runs, result.waiting_at, skips(result)) == (runs, waiting_at, skipped)


def test_only_one_tick_waits_for_the_running_task() -> None:
    policy, earlier = Policy(Overlap.QUEUE_ONE), NOON - MINUTE

    result = plan(policy, seconds(0), has_live_task=True, waiting_at=earlier)
    assert (result.runs, result.waiting_at, skips(result)) == ((), earlier, [(1, SkipReason.OVERLAP)])
    ended = plan(policy, -seconds(1), waiting_at=earlier)
    assert (ended.runs, ended.waiting_at, ended.skipped) == ((earlier,), None, ())
    both = plan(policy, seconds(0), waiting_at=earlier)
    assert (both.runs, both.waiting_at, both.skipped) == ((earlier,), NOON, ())


def test_waiting_tick_survives_a_pause() -> None:
    earlier = NOON - MINUTE

    for overlap in Overlap:
        result = plan(Policy(overlap), seconds(0), paused_until=FOREVER, waiting_at=earlier)
        assert (result.runs, result.waiting_at, skips(result)) == ((), earlier, [(1, SkipReason.PAUSED)])


@pytest.mark.parametrize(
    ("overlap", "runs", "skipped"),
    [
        (Overlap.SKIP, 1, [(1, SkipReason.OVERLAP)]),
        (Overlap.ALLOW, 2, []),
        (Overlap.CANCEL_RUNNING, 1, [(1, SkipReason.OVERLAP)]),
    ],
)
def test_waiting_tick_is_not_lost_when_overlap_changes(overlap, runs, skipped) -> None:
    result = plan(Policy(overlap), seconds(0), waiting_at=NOON - MINUTE)

    assert (len(result.runs), result.waiting_at, skips(result)) == (runs, None, skipped)


policies = st.builds(
    Policy,
    overlap=st.sampled_from(Overlap),
    catch_up=st.sampled_from(CatchUp),
    max_catch_up=st.integers(1, 200),
    catch_up_window=st.none() | st.timedeltas(timedelta(0), timedelta(days=3)),
    delay=st.sampled_from([timedelta(0), seconds(90)]),
    ends_at=st.none() | st.just(NOON + timedelta(hours=30)),
)


@given(
    policy=policies,
    expression=st.sampled_from([EACH_MINUTE, EACH_HOUR, Cron("30 2 * * *", "Europe/Berlin"), Every(seconds=7)]),
    steps=st.lists(
        st.tuples(st.timedeltas(timedelta(0), timedelta(days=2)), st.booleans(), st.booleans()), min_size=1, max_size=8
    ),
)
def test_each_due_tick_is_accounted_for_exactly_once(policy, expression, steps) -> None:
    now, waiting_at = NOON, None
    start = next_at = first_tick(expression, policy, NOON)
    runs: list[datetime] = []
    skipped: list[Skipped] = []
    for step, is_paused, has_live_task in steps:
        now += step
        state = {"paused_until": FOREVER if is_paused else None, "has_live_task": has_live_task}
        while True:
            result = make_plan(expression, policy, now, next_at=next_at, waiting_at=waiting_at, **state)
            runs += result.runs
            skipped += result.skipped
            if (next_at, waiting_at) == (result.next_at, result.waiting_at):
                break
            next_at, waiting_at = result.next_at, result.waiting_at

    due, tick = [], start
    while tick is not None and tick + policy.delay <= now:
        due.append(tick)
        tick = first_tick(expression, policy, tick)
    outcomes = Counter([*runs, *([waiting_at] if waiting_at else [])])
    for skip in skipped:
        ticks = [tick for tick in due if skip.first_at <= tick <= skip.last_at]
        assert (ticks[0], ticks[-1], min(len(ticks), MAX_COUNTED)) == (skip.first_at, skip.last_at, skip.count)
        outcomes.update(ticks)
    assert outcomes == Counter(due)
    assert next_at == tick


def test_week_of_missed_seconds_is_one_plan() -> None:
    each_second, now = Cron("* * * * * *", "Europe/Berlin"), NOON + timedelta(days=7, seconds=0.5)
    result = make_plan(each_second, Policy(), now, next_at=NOON)

    assert result.runs == (NOON + timedelta(days=7) - seconds(29),)
    assert result.skipped[0] == Skipped(NOON, result.runs[0] - seconds(2), MAX_COUNTED, SkipReason.MISSED)
    assert skips(result) == [(MAX_COUNTED + 1, SkipReason.MISSED), (29, SkipReason.OVERLAP)]
    assert result.next_at == NOON + timedelta(days=7) + seconds(1)


def test_tick_on_time_after_a_long_downtime_is_not_missed() -> None:
    now, policy = NOON + seconds(MAX_TICKS + 5), Policy(Overlap.ALLOW, CatchUp.NONE)
    each_second = Every(seconds=1)
    first = make_plan(each_second, policy, now, next_at=NOON)
    second = make_plan(each_second, policy, now, next_at=first.next_at)

    assert skips(first) == [(MAX_TICKS + 5 - 30, SkipReason.MISSED)]
    assert first.runs + second.runs == tuple(now - seconds(30 - number) for number in range(31))


def test_long_jitter_that_is_cut_short_is_planned_in_parts() -> None:
    now = NOON + seconds(2 * MAX_TICKS)
    policy = Policy(Overlap.ALLOW, CatchUp.NONE, delay=timedelta(days=1))
    result = make_plan(Every(seconds=1), policy, now, next_at=NOON, with_jitter=False)

    assert (len(result.runs), result.skipped, result.next_at) == (MAX_TICKS, (), NOON + seconds(MAX_TICKS))


@pytest.mark.parametrize(("late", "count"), [(1_010, 911), (1_098, 999), (1_099, 1_000), (9_000, 1_000)])
def test_last_missed_ticks_of_a_long_downtime_are_made_up_for(late: int, count: int) -> None:
    policy = Policy(Overlap.ALLOW, CatchUp.ALL, max_catch_up=100)
    result = plan(policy, late * MINUTE + seconds(45))

    assert result.runs == tuple(NOON + MINUTE * minute for minute in range(late - 99, late + 1))
    assert result.skipped == (Skipped(NOON, NOON + MINUTE * (late - 100), count, SkipReason.MISSED),)


def test_ticks_of_a_pause_and_a_downtime_after_it_have_own_reasons() -> None:
    for days in (0.1, 5):
        end_of_pause, now = NOON + timedelta(days=days), NOON + 2 * timedelta(days=days) + seconds(45)
        result = make_plan(EACH_MINUTE, Policy(), now, next_at=NOON, paused_until=end_of_pause)
        paused, missed = result.skipped

        assert (paused.last_at, paused.reason) == (end_of_pause - MINUTE, SkipReason.PAUSED)
        assert (missed.first_at, missed.reason) == (end_of_pause, SkipReason.MISSED)
        assert result.runs == (missed.last_at + MINUTE,) == (now - seconds(45),)
        assert paused.count == missed.count == (144 if days == 0.1 else MAX_COUNTED)

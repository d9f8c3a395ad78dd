"""
Decide which ticks of a schedule become tasks, which wait, and which are skipped: a function of the row and the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, groupby, islice, takewhile
from typing import Final

from jobqueue.schedules.expressions import Expression, last_before, ticks_after
from jobqueue.values.policies import MAX_COUNTED, CatchUp, Overlap, SkipReason

# A tick is missed when it is later than this: executors were down, or could not reach the database.
MISSED_AFTER: Final = timedelta(seconds=30)
# One plan lists this many ticks at most, and the next plan continues. Before, it skips those that no policy runs.
MAX_TICKS: Final = 1_000


@dataclass(frozen=True)
class Policy:
    """The rules by which a schedule treats its ticks."""

    overlap: Overlap = Overlap.SKIP  # what happens to a tick while the task of the tick before is live
    catch_up: CatchUp = CatchUp.LATEST  # which missed ticks become tasks
    max_catch_up: int = 100  # for ALL, how many missed ticks become tasks
    catch_up_window: timedelta | None = None  # how far back LATEST and ALL go; None: no bound
    delay: timedelta = timedelta(0)  # from a tick to the start of its task
    ends_at: datetime | None = None  # no tick lies after it; None: no end


@dataclass(frozen=True)
class Skipped:
    """Consecutive ticks that became no task, for one reason."""

    first_at: datetime  # the first of the ticks
    last_at: datetime  # the last of the ticks
    count: int  # of the ticks; with MAX_COUNTED there may be more
    reason: SkipReason  # why none of them became a task


@dataclass(frozen=True)
class Plan:
    """The decision about the ticks that are due."""

    runs: tuple[datetime, ...] = ()  # these ticks become tasks now
    waiting_at: datetime | None = None  # this tick becomes a task when the running one has ended; None: no tick waits
    skipped: tuple[Skipped, ...] = ()  # ticks that become no task, oldest first
    next_at: datetime | None = None  # the first tick that this plan does not account for; None if there is none


def make_plan(
    expression: Expression,
    policy: Policy,
    now: datetime,
    *,
    next_at: datetime | None,
    waiting_at: datetime | None = None,
    paused_until: datetime | None = None,
    has_live_task: bool = False,
    with_jitter: bool = True,
) -> Plan:
    """Decide about the ticks from `next_at` on that are due `now`.

    `waiting_at` is the tick that waits for the running task (`Overlap.QUEUE_ONE`). Ticks before `paused_until` are
    skipped. `has_live_task` says whether a task of this schedule has not ended. Without jitter, ticks are
    due at their moment. Every due tick is in exactly one of `runs`, `waiting_at` and `skipped`.
    """
    due_until = now - policy.delay if with_jitter else now
    passed, next_at = _passed(expression, policy, now, next_at, paused_until)
    due, next_at = _due_ticks(expression, policy, next_at, due_until)
    paused = [tick for tick in due if paused_until and tick < paused_until]
    kept = _caught_up(due[len(paused) :], policy, now)
    reasons = dict.fromkeys(due, SkipReason.MISSED) | dict.fromkeys(paused, SkipReason.PAUSED)
    for tick in kept:
        del reasons[tick]
    runs: Sequence[datetime] = ()
    if paused_until is None or paused_until <= now:
        runs, waiting_at, overlapping = _without_overlap(kept, policy.overlap, waiting_at, has_live_task)
        reasons |= dict.fromkeys(overlapping, SkipReason.OVERLAP)
    return Plan(tuple(runs), waiting_at, passed + _ranges(dict(sorted(reasons.items()))), next_at)


def first_tick(expression: Expression, policy: Policy, after: datetime) -> datetime | None:
    """Return the first tick after a moment, None if there is none before `ends_at`."""
    tick = expression.next_after(after)
    return tick if tick and (policy.ends_at is None or tick <= policy.ends_at) else None


def _passed(
    expression: Expression, policy: Policy, now: datetime, tick: datetime | None, paused_until: datetime | None
) -> tuple[tuple[Skipped, ...], datetime | None]:
    """Return the paused and the missed ticks that no policy runs, as ranges, and the tick that follows them."""
    missed_until = min(now - policy.delay - MISSED_AFTER, policy.ends_at or now)
    runnable = policy.max_catch_up if policy.catch_up == CatchUp.ALL else 1
    steps = [(SkipReason.MISSED, missed_until, runnable)]
    if paused_until is not None:
        steps.insert(0, (SkipReason.PAUSED, min(paused_until, missed_until), 0))
    ranges: list[Skipped] = []
    for reason, until, kept in steps:
        if tick is None or tick >= until:
            continue
        ticks = takewhile(until.__gt__, chain([tick], ticks_after(expression, tick)))
        listed = list(islice(ticks, MAX_COUNTED + kept))
        if (count := len(listed) - kept) == MAX_COUNTED:
            listed = last_before(expression, tick, until, kept + 1)
        if count > 0:
            last_at = listed[-kept - 1]
            ranges.append(Skipped(tick, last_at, count, reason))
            tick = first_tick(expression, policy, last_at)
    return tuple(ranges), tick


def _due_ticks(
    expression: Expression, policy: Policy, tick: datetime | None, until: datetime
) -> tuple[list[datetime], datetime | None]:
    due: list[datetime] = []
    while tick is not None and tick <= until and len(due) < MAX_TICKS:
        due.append(tick)
        tick = first_tick(expression, policy, tick)
    return due, tick


def _caught_up(due: Sequence[datetime], policy: Policy, now: datetime) -> list[datetime]:
    """Return the ticks that are on time, and the missed ones that run."""
    missed_before = now - policy.delay - MISSED_AFTER
    on_time = [tick for tick in due if tick >= missed_before]
    window = policy.catch_up_window
    missed = [tick for tick in due if tick < missed_before and (window is None or tick >= now - window)]
    match policy.catch_up:
        case CatchUp.ALL:
            return missed[-policy.max_catch_up :] + on_time
        case CatchUp.LATEST:
            return on_time or missed[-1:]
        case CatchUp.NONE:
            return on_time


def _without_overlap(
    ticks: Sequence[datetime], overlap: Overlap, waiting_at: datetime | None, has_live_task: bool
) -> tuple[Sequence[datetime], datetime | None, Sequence[datetime]]:
    """Return the ticks that run, the one that waits, and those that overlap with a running task."""
    # A tick that waits under another overlap has waited since before the schedule was changed.
    queue = [waiting_at, *ticks] if waiting_at else ticks
    room = 0 if has_live_task else 1
    match overlap:
        case Overlap.ALLOW:
            return queue, None, ()
        case Overlap.CANCEL_RUNNING:
            return queue[-1:], None, queue[:-1]
        case Overlap.SKIP:
            return queue[:room], None, queue[room:]
        case Overlap.QUEUE_ONE:
            waiting = queue[room : room + 1]
            return queue[:room], waiting[0] if waiting else None, queue[room + 1 :]


def _ranges(reasons: dict[datetime, SkipReason]) -> tuple[Skipped, ...]:
    """Return consecutive ticks with the same reason as ranges."""

    def ranges() -> Iterator[Skipped]:
        for reason, group in groupby(reasons.items(), key=lambda item: item[1]):
            ticks = [tick for tick, _ in group]
            yield Skipped(ticks[0], ticks[-1], len(ticks), reason)

    return tuple(ranges())

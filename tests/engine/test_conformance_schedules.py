"""Schedules, on every engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.db import DataError, transaction

from jobqueue.models import Schedule, ScheduleTick
from jobqueue.values.counters import TICK_COUNTERS, ScheduleGauges, bucket
from jobqueue.values.policies import MAX_COUNTED, CatchUp, Overlap, SkipReason
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new

NO_PAUSE: dict[str, Any] = {"paused_at": None, "paused_by": "", "pause_reason": "", "resume_at": None}

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

MINUTE = timedelta(minutes=1)
OVERLAP, PAUSED, MISSED, KEY = SkipReason


class ScheduleBench:
    """Schedules of an engine with a tick every minute, and a clock that moves from tick to tick."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.verbs = bench.engine.schedules

    def add(self, name: str = "warm-cache", *, task: dict[str, Any] | None = None, **columns: Any) -> Schedule:
        """Add a schedule. Its first tick is due when a minute has passed."""
        template = msgspec.to_builtins(new(**{"queue_name": "cache"} | (task or {})))
        anchor_at = self.bench.engine.db.now() + MINUTE - timedelta(seconds=1)
        values = {"task_type": "tests.noop", "new_task": template, "expression": "@every 60", "anchor_at": anchor_at}
        return self.verbs.save(name, values | columns)[0]

    def pass_ticks(self, count: int = 1) -> None:
        self.bench.time_passes(60 * count)

    def fire(self) -> tuple[int, int]:
        """Return the number of enqueued and of skipped ticks."""
        fired = self.bench.engine.ticks.fire()
        return fired.enqueued, fired.skipped

    def row(self, row: Schedule) -> Schedule:
        return self.bench.engine.db.schedules.get(pk=row.pk)

    def next_at(self, row: Schedule) -> datetime:
        at = self.row(row).next_at
        assert at is not None
        return at

    def ticks(self, row: Schedule) -> list[ScheduleTick]:
        return list(ScheduleTick.objects.using(self.bench.engine.database).filter(schedule=row).order_by("tick_at"))

    def history(self, row: Schedule) -> list[tuple[int, str]]:
        return [(tick.count, tick.reason) for tick in self.ticks(row)]

    def live(self, row: Schedule) -> list[UUID]:
        return list(self.bench.engine.db.tasks.live().filter(schedule=row).order_by("pk").values_list("pk", flat=True))

    def end_tasks(self, row: Schedule) -> None:
        self.bench.engine.tasks.cancel(self.live(row))


@pytest.fixture
def schedules(bench: Bench) -> ScheduleBench:
    return ScheduleBench(bench)


def test_schedule_is_not_due_before_its_first_tick(schedules: ScheduleBench) -> None:
    now = schedules.bench.engine.db.now()
    row = schedules.add()

    assert now < schedules.next_at(row) < now + MINUTE
    assert row.due_at == row.next_at
    assert schedules.fire() == (0, 0)


def test_due_tick_becomes_one_task(schedules: ScheduleBench) -> None:
    row = schedules.add(task={"priority": 3, "max_attempts": 7, "options": '{"timeout": 5}'})
    schedules.pass_ticks()
    tick_at = schedules.next_at(row)

    fired = schedules.bench.engine.ticks.fire()

    (task_id,) = schedules.live(row)
    task = schedules.bench.row(task_id)
    ((new_task, enqueued_at),) = fired.tasks
    assert (fired.count, fired.skipped, fired.queues) == (1, 0, frozenset({"cache"}))
    assert (new_task.id, enqueued_at) == (task_id, task.enqueued_at)
    assert (task.priority, task.max_attempts, task.status, task.queue_name) == (3, 7, Status.READY, "cache")
    assert task.options == {"timeout": 5, "schedule": "warm-cache", "scheduled_at": tick_at.astimezone(UTC).isoformat()}
    (tick,) = schedules.ticks(row)
    assert (tick.tick_at, tick.last_at, tick.count, tick.task_id) == (tick_at, tick_at, 1, task_id)
    assert schedules.row(row).next_at == tick_at + MINUTE
    assert schedules.fire() == (0, 0)


def test_tick_is_skipped_while_the_last_task_is_live(schedules: ScheduleBench) -> None:
    row = schedules.add()
    for expected in ((1, 0), (0, 1), (0, 1)):
        schedules.pass_ticks()
        assert schedules.fire() == expected
    schedules.end_tasks(row)
    schedules.pass_ticks()

    assert schedules.fire() == (1, 0)
    assert schedules.history(row) == [(1, ""), (2, OVERLAP), (1, "")]


def test_one_tick_waits_for_the_running_task(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.QUEUE_ONE)
    for expected in ((1, 0), (0, 0), (0, 1)):
        schedules.pass_ticks()
        assert schedules.fire() == expected
    waiting_at = schedules.row(row).waiting_at
    assert schedules.fire() == (0, 0)
    schedules.end_tasks(row)

    assert schedules.fire() == (1, 0)
    assert schedules.fire() == (0, 0)
    assert schedules.row(row).waiting_at is None
    assert [tick.tick_at for tick in schedules.ticks(row) if tick.task_id][-1] == waiting_at


def test_paused_schedule_keeps_its_waiting_tick(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.QUEUE_ONE)
    for _ in range(2):
        schedules.pass_ticks()
        schedules.fire()
    schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now())
    schedules.end_tasks(row)
    assert schedules.fire() == (0, 0)
    schedules.verbs.resume([row.pk])

    assert schedules.fire() == (1, 0)


def test_tick_beside_the_waiting_one_starts_a_record_of_its_own(schedules: ScheduleBench) -> None:
    row = schedules.add()
    for _ in range(2):
        schedules.pass_ticks()
        schedules.fire()
    schedules.verbs.save("warm-cache", {"overlap": Overlap.QUEUE_ONE})
    for _ in range(3):
        schedules.pass_ticks()
        schedules.fire()

    assert schedules.history(row) == [(1, ""), (1, OVERLAP), (2, OVERLAP)]


def test_retired_schedule_records_its_waiting_tick(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.QUEUE_ONE)
    for _ in range(2):
        schedules.pass_ticks()
        schedules.fire()
    schedules.verbs.retire([row.pk])

    assert schedules.history(row) == [(1, ""), (1, OVERLAP)]


@pytest.mark.parametrize("is_retired", [True, False])
def test_jitter_of_a_tick_is_cut_short_by_a_change(schedules: ScheduleBench, *, is_retired: bool) -> None:
    row = schedules.add(name="b", jitter_seconds=86_400.0)
    assert row.due_at is not None
    assert row.next_at is not None
    assert row.due_at > row.next_at + MINUTE
    schedules.pass_ticks()
    assert schedules.fire() == (0, 0)
    if is_retired:
        schedules.verbs.retire([row.pk])
    else:
        schedules.verbs.save("b", {"expression": "@every 3600"})

    assert schedules.history(row) == [(1, "")]


def test_new_timing_repeats_no_tick_if_the_clock_is_set_back(
    schedules: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = schedules.add(overlap=Overlap.ALLOW)
    for _ in range(3):
        schedules.pass_ticks()
        schedules.fire()
    next_at, now = schedules.next_at(row), schedules.bench.engine.db.now() - 3 * MINUTE
    monkeypatch.setattr(schedules.bench.engine.db, "now", lambda: now)
    changed = schedules.verbs.save("warm-cache", {"ends_at": now + 60 * MINUTE})[0]

    assert changed.next_at == next_at


def test_overlapping_tasks_run_if_allowed(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.ALLOW)
    for _ in range(3):
        schedules.pass_ticks()
        assert schedules.fire() == (1, 0)

    assert len(schedules.live(row)) == 3


def test_running_task_is_cancelled_by_the_next_tick(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.CANCEL_RUNNING)
    schedules.pass_ticks()
    schedules.fire()
    (claimed,) = schedules.bench.claim(queues=["cache"])
    schedules.pass_ticks()

    fired = schedules.bench.engine.ticks.fire()

    assert (fired.enqueued, fired.has_cancelled) == (1, True)
    assert schedules.bench.row(claimed.id).cancel_requested_at is not None
    assert len(schedules.live(row)) == 2


def test_waiting_task_is_cancelled_by_the_next_tick(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.CANCEL_RUNNING)
    schedules.pass_ticks()
    schedules.fire()
    (first,) = schedules.live(row)
    schedules.pass_ticks()
    schedules.fire()

    assert schedules.bench.status(first) == Status.CANCELLED
    assert len(schedules.live(row)) == 1


def test_last_missed_tick_runs_after_a_downtime(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.pass_ticks(5)
    schedules.bench.time_passes(45)
    next_at = schedules.next_at(row)

    assert schedules.fire() == (1, 4)
    assert schedules.history(row) == [(4, MISSED), (1, "")]
    missed, last = schedules.ticks(row)
    assert (missed.tick_at, missed.last_at) == (next_at, next_at + 3 * MINUTE)
    assert last.tick_at == next_at + 4 * MINUTE


def test_each_missed_tick_runs_if_asked_for(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.ALLOW, catch_up=CatchUp.ALL, max_catch_up=3)
    schedules.pass_ticks(5)
    schedules.bench.time_passes(45)

    assert schedules.fire() == (3, 2)
    assert schedules.history(row) == [(2, MISSED), (1, ""), (1, ""), (1, "")]


def test_long_downtime_is_one_record(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.pass_ticks(10_000)

    assert [schedules.fire() for _ in range(2)] == [(1, MAX_COUNTED + 1), (0, 0)]
    assert schedules.history(row) == [(MAX_COUNTED, MISSED), (1, "")]
    missed, last = schedules.ticks(row)
    assert not missed.is_count_exact
    assert missed.last_at - missed.tick_at == 9_998 * MINUTE
    assert last.tick_at == missed.last_at + MINUTE


def test_long_record_counts_no_further(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now(), paused_by="ada")
    for count in (MAX_COUNTED - 1, 5):
        schedules.pass_ticks(count)
        assert schedules.fire() == (0, count)
        (paused,) = schedules.ticks(row)
        assert paused.is_count_exact == (count == MAX_COUNTED - 1)

    assert (paused.count, paused.reason) == (MAX_COUNTED, PAUSED)
    assert paused.last_at - paused.tick_at == (MAX_COUNTED + 3) * MINUTE


def test_paused_schedule_records_its_ticks(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now(), paused_by="ada")
    for _ in range(3):
        schedules.pass_ticks()
        assert schedules.fire() == (0, 1)
    schedules.verbs.resume([row.pk])
    schedules.pass_ticks()

    assert schedules.fire() == (1, 0)
    assert schedules.history(row) == [(3, PAUSED), (1, "")]


def test_pause_ends_at_its_time(schedules: ScheduleBench) -> None:
    row = schedules.add()
    now = schedules.bench.engine.db.now()
    schedules.verbs.pause([row.pk], paused_at=now, resume_at=now + 2 * MINUTE)
    schedules.pass_ticks(3)

    assert schedules.fire() == (1, 2)
    assert schedules.history(row) == [(2, PAUSED), (1, "")]


def test_due_tick_is_accounted_for_before_a_pause(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.pass_ticks()
    schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now())

    assert schedules.history(row) == [(1, "")]


def test_tick_whose_key_another_task_has_is_recorded(schedules: ScheduleBench) -> None:
    schedules.bench.add(key="digest")
    row = schedules.add(task={"key": "digest"})
    schedules.pass_ticks()

    assert schedules.fire() == (0, 1)
    assert schedules.history(row) == [(1, KEY)]


def test_change_of_the_expression_moves_the_next_tick(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.pass_ticks()
    now = schedules.bench.engine.db.now()
    changed = schedules.verbs.save("warm-cache", {"expression": "0 0 1 1 *", "timezone": "UTC", "anchor_at": None})[0]

    assert schedules.history(row) == [(1, "")]
    next_at = schedules.next_at(changed).astimezone(UTC)
    assert (changed.pk, next_at) == (row.pk, datetime(now.astimezone(UTC).year + 1, 1, 1, tzinfo=UTC))


def test_change_of_the_task_does_not_move_the_next_tick(schedules: ScheduleBench) -> None:
    row = schedules.add()
    changed = schedules.verbs.save("warm-cache", {"overlap": Overlap.ALLOW})[0]

    assert (changed.next_at, changed.overlap) == (row.next_at, Overlap.ALLOW)


def test_schedule_starts_and_ends(schedules: ScheduleBench) -> None:
    now = schedules.bench.engine.db.now()
    row = schedules.add(starts_at=now + 3 * MINUTE, ends_at=now + 5 * MINUTE, overlap=Overlap.ALLOW)
    fired = []
    for _ in range(7):
        schedules.pass_ticks()
        fired.append(schedules.fire())

    assert fired == [(0, 0)] * 3 + [(1, 0)] * 2 + [(0, 0)] * 2
    assert (schedules.row(row).next_at, schedules.row(row).due_at) == (None, None)


def test_retired_schedule_never_fires_and_keeps_its_history(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.pass_ticks()
    assert schedules.verbs.retire([row.pk]) == 1
    schedules.pass_ticks(3)

    assert schedules.fire() == (0, 0)
    assert schedules.history(row) == [(1, "")]
    revived = schedules.verbs.save("warm-cache", {"retired_at": None})[0]
    assert schedules.next_at(revived) > schedules.bench.engine.db.now()


def test_run_now_and_backfill_enqueue_whatever_the_state(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now())
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2)]

    for _ in range(2):  # a repeated backfill adds nothing
        schedules.verbs.backfill(row.pk, days)
    schedules.verbs.run_now(row.pk)

    assert len(schedules.live(row)) == 3
    assert [tick.trigger for tick in schedules.ticks(row)] == ["backfill", "backfill", "manual"]


@pytest.mark.parametrize(
    "columns",
    [
        {"expression": "61 * * * *", "timezone": "UTC"},
        {"expression": "0 0 * * *", "timezone": "Atlantis/Poseidonis"},
        {"overlap": "sometimes"},
    ],
)
def test_schedule_that_one_host_cannot_evaluate_stays_due_for_others(
    schedules: ScheduleBench, columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = schedules.add("broken"), schedules.add("sound")
    rows = schedules.bench.engine.db.schedules.filter(pk=broken.pk)
    usable = rows.values(*columns).get()
    rows.update(**columns)
    schedules.pass_ticks()

    assert [schedules.fire() for _ in range(3)] == [(1, 0), (0, 0), (0, 0)]
    assert (schedules.history(sound), schedules.history(broken)) == ([(1, "")], [])
    assert (schedules.row(broken).paused_at, schedules.row(broken).due_at) == (None, schedules.next_at(broken))
    assert [record.getMessage().split()[:2] for record in caplog.records] == [["schedule.deferred", "schedule=broken"]]
    # Another host can use the same row. This one tries it again when a person has changed it.
    rows.update(**usable, updated_at=schedules.bench.engine.db.now())
    assert schedules.fire() == (1, 0)


@pytest.mark.parametrize("verb", ["pause", "retire", "run_now", "save"])
def test_schedule_that_cannot_be_evaluated_can_be_changed(schedules: ScheduleBench, verb: str) -> None:
    row = schedules.add()
    schedules.bench.engine.db.schedules.filter(pk=row.pk).update(expression="0 0 * * *", timezone="Atlantis/Poseidonis")
    schedules.pass_ticks()
    match verb:
        case "pause":
            schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now())
            assert schedules.row(row).paused_at is not None
        case "retire":
            assert schedules.verbs.retire([row.pk]) == 1
        case "run_now":
            assert schedules.verbs.run_now(row.pk).created
        case "save":
            schedules.verbs.save("warm-cache", {"expression": "0 0 * * *", "timezone": "UTC"})
            assert schedules.next_at(row) > schedules.bench.engine.db.now()


BROKEN_TEMPLATES = [
    {"task_type": 5},
    {},
    [],
    {"task_type": "tests.noop", "options": "[]"},
    {"task_type": "tests.noop", "queue_name": "q" * 5000},
]


@pytest.fixture(params=BROKEN_TEMPLATES, ids=lambda template: str(template)[:40])
def broken(schedules: ScheduleBench, request: pytest.FixtureRequest) -> Schedule:
    """A schedule whose task a check or the database refuses."""
    if schedules.bench.engine.database == "sqlite" and "queue_name" in request.param:
        pytest.skip("SQLite stores texts of any length")
    row = schedules.add("broken")
    schedules.bench.engine.db.schedules.filter(pk=row.pk).update(new_task=request.param)
    return row


def test_schedule_with_broken_task_stops_alone_and_keeps_its_ticks(schedules: ScheduleBench, broken: Schedule) -> None:
    sound = schedules.add("sound")
    for expected in ((1, 1), (0, 2)):  # the task of the sound schedule is still live
        schedules.pass_ticks()
        assert schedules.fire() == expected
    row = schedules.row(broken)

    assert (row.paused_by, bool(row.pause_reason)) == ("django-jobqueue", True)
    assert (schedules.history(broken), schedules.history(sound)) == ([(2, PAUSED)], [(1, ""), (1, OVERLAP)])
    template = msgspec.to_builtins(new(queue_name="cache"))
    schedules.verbs.save("broken", {"new_task": template})
    schedules.verbs.resume([broken.pk])
    schedules.pass_ticks()
    assert schedules.fire() == (1, 1)
    assert schedules.history(broken) == [(2, PAUSED), (1, "")]


@pytest.mark.parametrize("verb", ["save", "pause", "resume", "retire", "run_now"])
def test_schedule_with_broken_task_can_be_changed(schedules: ScheduleBench, broken: Schedule, verb: str) -> None:
    schedules.pass_ticks()
    template = msgspec.to_builtins(new(queue_name="cache"))
    match verb:
        case "save":
            schedules.verbs.save("broken", {"new_task": template})
        case "pause":
            schedules.verbs.pause([broken.pk], paused_at=schedules.bench.engine.db.now())
        case "run_now":
            with pytest.raises((ValueError, DataError)):
                schedules.verbs.run_now(broken.pk)
            schedules.fire()
        case _:
            getattr(schedules.verbs, verb)([broken.pk])

    assert schedules.history(broken) == [(1, PAUSED)]


def test_schedule_whose_record_is_refused_is_taken_out(schedules: ScheduleBench) -> None:
    """A tick that was recorded by hand is refused, as a task and as a skipped one."""
    row = schedules.add()
    schedules.pass_ticks()
    tick_at = schedules.next_at(row)
    ScheduleTick.objects.using(schedules.bench.engine.database).create(
        schedule=row, tick_at=tick_at, last_at=tick_at, recorded_at=tick_at, reason=KEY
    )

    schedules.fire()

    assert (schedules.row(row).due_at, schedules.row(row).paused_by) == (None, "django-jobqueue")
    assert schedules.fire() == (0, 0)
    schedules.verbs.resume([row.pk])
    assert schedules.next_at(row) == tick_at + MINUTE


def test_many_due_schedules_are_enqueued_in_batches(schedules: ScheduleBench) -> None:
    for number in range(5):
        schedules.add(f"schedule-{number}")
    schedules.pass_ticks()

    assert [schedules.bench.engine.ticks.fire(limit=2).enqueued for _ in range(4)] == [2, 2, 1, 0]


def test_jitter_delays_by_a_fixed_part(schedules: ScheduleBench) -> None:
    first, second = (schedules.add(name, jitter_seconds=20.0) for name in ("a", "b"))
    delays = [row.due_at - row.next_at for row in (first, second) if row.due_at and row.next_at]

    assert len({*delays}) == 2
    assert all(timedelta(0) <= delay < timedelta(seconds=20) for delay in delays)
    assert schedules.verbs.save("a", {"jitter_seconds": 20.0})[0].due_at == first.due_at


def test_old_ticks_are_deleted_but_for_the_newest(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.ALLOW)
    schedules.verbs.run_now(row.pk)
    for _ in range(4):
        schedules.pass_ticks()
        schedules.fire()
    assert schedules.bench.engine.ticks.prune() == 0
    newest = schedules.ticks(row)[-1]
    schedules.bench.time_passes(91 * 86_400)

    assert [schedules.bench.engine.ticks.prune(limit=3) for _ in range(3)] == [3, 1, 0]
    assert [tick.pk for tick in schedules.ticks(row)] == [newest.pk]


def test_retention_of_ticks_is_an_option(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.ALLOW)
    for _ in range(2):
        schedules.pass_ticks()
        schedules.fire()
    schedules.bench.time_passes(1000 * 86_400)

    assert schedules.bench.with_options(tick_retention=None).engine.ticks.prune() == 0
    assert schedules.bench.with_options(tick_retention=1001 * 86_400.0).engine.ticks.prune() == 0
    assert schedules.bench.with_options(tick_retention=0.0).engine.ticks.prune() == 1
    assert len(schedules.ticks(row)) == 1


def counted(schedules: ScheduleBench) -> dict[str, int]:
    """Return the counters of ticks that are not 0."""
    while schedules.bench.engine.counters.aggregate_counters():
        pass
    totals = schedules.bench.engine.counters.counter_totals()
    assert {(total.queue_name, total.task_type) for total in totals} <= {
        ("cache", "tests.noop"),
        ("default", "tests.noop"),
    }
    sums = {name: sum(getattr(total, name) for total in totals) for name in TICK_COUNTERS}
    return {name: number for name, number in sums.items() if number}


def test_ticks_are_counted_by_outcome(schedules: ScheduleBench) -> None:
    row = schedules.add()
    for _ in range(3):
        schedules.pass_ticks()
        schedules.fire()
    schedules.verbs.pause([row.pk], paused_at=schedules.bench.engine.db.now())
    schedules.pass_ticks()
    schedules.fire()
    schedules.verbs.resume([row.pk])
    schedules.end_tasks(row)
    schedules.pass_ticks(4)
    schedules.bench.time_passes(45)
    schedules.fire()
    schedules.bench.add(key="taken")
    schedules.add("with-key", task={"key": "taken"})
    schedules.pass_ticks()
    schedules.fire()

    assert counted(schedules) == {
        "ticks_enqueued": 2, "ticks_overlap": 3, "ticks_paused": 1, "ticks_missed": 3, "ticks_key": 1
    }  # fmt: skip


def test_run_now_is_not_counted_as_a_tick(schedules: ScheduleBench) -> None:
    row = schedules.add()
    schedules.verbs.run_now(row.pk)

    assert counted(schedules) == {}


def test_ticks_that_are_rolled_back_are_not_counted(schedules: ScheduleBench) -> None:
    schedules.add(overlap=Overlap.ALLOW)
    for _ in range(2):
        schedules.pass_ticks()
        with transaction.atomic(using=schedules.bench.engine.database):
            assert schedules.fire()[0] == 1
            transaction.set_rollback(True, using=schedules.bench.engine.database)

    assert schedules.bench.engine.counters.aggregate_counters() == 0


def test_lateness_is_counted_from_the_due_moment(schedules: ScheduleBench) -> None:
    row = schedules.add(jitter_seconds=20.0)
    schedules.bench.time_passes(85)
    due_at, now = schedules.row(row).due_at, schedules.bench.engine.db.now
    assert due_at is not None
    at_least, _, at_most = (now() - due_at).total_seconds(), schedules.fire(), (now() - due_at).total_seconds()

    assert counted(schedules) == {"ticks_enqueued": 1}
    (counts,) = schedules.bench.engine.counters.counter_totals()
    assert 5 < at_least < counts.lateness_seconds < at_most
    assert counts.lateness[bucket(counts.lateness_seconds)] == sum(counts.lateness) == 1


def test_tick_that_waited_for_a_task_is_not_late(schedules: ScheduleBench) -> None:
    row = schedules.add(overlap=Overlap.QUEUE_ONE)
    for _ in range(2):
        schedules.pass_ticks()
        schedules.fire()
    schedules.bench.time_passes(20)
    schedules.end_tasks(row)
    schedules.fire()

    assert counted(schedules) == {"ticks_enqueued": 2}
    (counts,) = schedules.bench.engine.counters.counter_totals()
    assert sum(counts.lateness) == 1


def test_gauges_count_schedules_and_the_most_overdue(schedules: ScheduleBench) -> None:
    bench = schedules.bench
    assert schedules.verbs.gauges() == ScheduleGauges(active=0, paused=0, stopped=0, overdue_seconds=0.0)
    rows = [schedules.add(f"schedule-{number}") for number in range(6)]
    now = bench.engine.db.now()
    schedules.verbs.pause([rows[0].pk], paused_at=now)
    schedules.verbs.pause([rows[1].pk], paused_at=now - MINUTE, resume_at=now)
    schedules.verbs.retire([rows[2].pk])
    bench.engine.db.schedules.filter(pk=rows[3].pk).update(new_task={})
    bench.time_passes(90)
    schedules.fire()  # stops the fourth
    schedules.fire()  # skips its tick

    assert schedules.verbs.gauges() == ScheduleGauges(active=3, paused=1, stopped=1, overdue_seconds=0.0)
    bench.time_passes(90)
    gauges = schedules.verbs.gauges()
    assert (gauges.active, gauges.paused, gauges.stopped) == (3, 1, 1)
    assert 45 < gauges.overdue_seconds < 75

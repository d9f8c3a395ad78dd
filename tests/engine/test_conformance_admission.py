"""Tasks with limits, on every engine: what admit() lets run, and when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from jobqueue.engine import admissions
from jobqueue.engine.postgres import admissions as postgres_admissions
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import AdmissionRequest, Queue, RateStart
from jobqueue.values.records import ClaimedTask
from jobqueue.values.states import LimitKind, Status
from tests.engine.bench import ERROR, Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def limited(bench: Bench, limit: int = 1, key: str = "imports:anna", **changes: Any) -> UUID:
    return bench.add(concurrency_key=key, concurrency_limit=limit, **changes)


def rated(bench: Bench, limit: int = 1, seconds: float = 60.0, key: str = "api:", **changes: Any) -> UUID:
    return bench.add(rate_key=key, rate_limit=limit, rate_seconds=seconds, **changes)


def statuses(bench: Bench, *ids: UUID) -> list[str]:
    return [bench.status(pk) for pk in ids]


def admitted(bench: Bench) -> int:
    return sum(bench.engine.admissions.admit().queues.values())


def claim_admitted(bench: Bench) -> list[ClaimedTask]:
    bench.engine.admissions.admit()
    return list(bench.claim())


class TestConcurrency:
    """It has more than 20 methods because each rule of the limit is a test."""

    def test_limited_task_is_blocked_until_it_is_admitted(self, bench: Bench) -> None:
        pk = limited(bench)

        assert bench.status(pk) == Status.BLOCKED
        assert bench.claim_ids() == []
        assert bench.engine.admissions.admit().queues == {"default": 1}
        assert bench.claim_ids() == [pk]

    def test_admission_stops_at_the_limit(self, bench: Bench) -> None:
        ids = [limited(bench, 2) for _ in range(4)]

        assert admitted(bench) == 2
        assert statuses(bench, *ids) == ["READY", "READY", "BLOCKED", "BLOCKED"]
        assert admitted(bench) == 0

    def test_keys_have_limits_of_their_own(self, bench: Bench) -> None:
        ids = [limited(bench, key=key) for key in ("imports:anna", "imports:bob", "imports:anna")]

        assert admitted(bench) == 2
        assert statuses(bench, *ids) == ["READY", "READY", "BLOCKED"]

    def test_expired_task_frees_its_place(self, bench: Bench) -> None:
        first, second = limited(bench, expires_after_seconds=10.0), limited(bench)
        bench.time_passes(20)
        (claimed,) = claim_admitted(bench)
        assert (claimed.id, claimed.is_expired) == (first, True)

        bench.commit(outcome(claimed, Status.CANCELLED))
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["CANCELLED", "READY"]

    def test_best_rank_is_admitted_first(self, bench: Bench) -> None:
        low, high = limited(bench, priority=-10), limited(bench, priority=10)

        bench.engine.admissions.admit()

        assert statuses(bench, low, high) == ["BLOCKED", "READY"]

    def test_admitted_task_does_not_overtake_another_key(self, bench: Bench) -> None:
        first, second = limited(bench, key="imports:anna"), limited(bench, key="imports:anna")
        other = limited(bench, key="imports:bob")
        bench.engine.admissions.admit()
        (claimed,) = bench.claim(limit=1)
        assert claimed.id == first

        bench.commit(outcome(claimed, Status.SUCCESSFUL))
        bench.engine.admissions.admit()

        assert bench.claim_ids() == [other, second]

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_end_lets_the_next_task_run(self, bench: Bench, status: Status) -> None:
        _, second = limited(bench), limited(bench)
        (claimed,) = claim_admitted(bench)

        bench.commit(outcome(claimed, status))

        assert admitted(bench) == 1
        assert bench.status(second) == Status.READY

    def test_task_that_waits_for_a_retry_does_not_count(self, bench: Bench) -> None:
        _, second = limited(bench), limited(bench)
        (claimed,) = claim_admitted(bench)

        bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=60.0))
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.READY

    def test_due_retry_is_blocked_while_another_task_counts(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=0.0))
        bench.engine.admissions.admit()

        bench.engine.inbox.wake_due()
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["BLOCKED", "READY"]

    def test_task_that_holds_while_retrying_still_counts(self, bench: Bench) -> None:
        first = limited(bench, count_while_retrying=True)
        second = limited(bench, count_while_retrying=True)
        (claimed,) = claim_admitted(bench)

        bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=0.0))
        bench.engine.admissions.admit()
        assert statuses(bench, first, second) == ["SCHEDULED", "BLOCKED"]
        bench.engine.inbox.wake_due()

        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_task_that_runs_again_uncounted_still_counts_until_it_has_run(self, bench: Bench) -> None:
        first = limited(bench, count_while_retrying=True)
        second = limited(bench, count_while_retrying=True)
        for _ in range(2):
            (claimed,) = claim_admitted(bench)
            assert claimed.id == first
            bench.commit(outcome(claimed, Status.SCHEDULED, stale_polls=1, wake_after_seconds=0.0))
            bench.engine.admissions.admit()
            assert statuses(bench, first, second) == ["SCHEDULED", "BLOCKED"]
            bench.engine.inbox.wake_due()
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed))
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["SUCCESSFUL", "READY"]

    @pytest.mark.parametrize("how", ["cancel", "run_now"])
    def test_held_place_is_free_when_its_wait_ends(self, bench: Bench, how: str) -> None:
        first = limited(bench, count_while_retrying=True)
        second = limited(bench, count_while_retrying=True)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SCHEDULED, wake_after_seconds=604_800.0))
        if how == "cancel":
            bench.engine.tasks.cancel([first])
        else:
            bench.engine.tasks.run_now([first])
            (claimed,) = claim_admitted(bench)
            bench.commit(outcome(claimed))
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.READY

    def test_suspended_actor_holds_no_place(self, bench: Bench) -> None:
        limited(bench, count_while_retrying=True)
        second = limited(bench, count_while_retrying=True)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SUSPENDED, has_succeeded=True, wake_after_seconds=60.0))
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.READY

    def test_rescued_task_with_a_rate_holds_its_place(self, bench: Bench) -> None:
        bench.beat()
        rate: dict[str, Any] = {"rate_key": "api:", "rate_limit": 1, "rate_seconds": 3600.0}
        first = limited(bench, count_while_retrying=True, **rate)
        second = limited(bench, count_while_retrying=True)
        claim_admitted(bench)
        bench.time_passes(100)
        assert len(bench.engine.executors.rescue()) == 1
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["BLOCKED", "BLOCKED"]

    def test_released_task_still_counts(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench)
        bench.engine.commits.release(claim_admitted(bench))
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_rescued_task_still_counts(self, bench: Bench) -> None:
        bench.beat()
        first, second = limited(bench), limited(bench)
        claim_admitted(bench)
        bench.time_passes(100)

        assert [task.id for task in bench.engine.executors.rescue()] == [first]
        bench.engine.admissions.admit()
        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_task_that_lost_too_many_executors_does_not_count(self, bench: Bench) -> None:
        bench = bench.with_options(max_executor_losses=1)
        bench.beat()
        first, second = limited(bench), limited(bench)
        claim_admitted(bench)
        bench.time_passes(100)
        bench.engine.executors.rescue()
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["FAILED", "READY"]

    def test_cancelled_task_does_not_count(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench)
        bench.engine.admissions.admit()

        bench.engine.tasks.cancel([first])
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["CANCELLED", "READY"]

    def test_cancelled_blocked_task_is_never_admitted(self, bench: Bench) -> None:
        pk = limited(bench)
        bench.engine.tasks.cancel([pk])

        assert admitted(bench) == 0
        assert bench.status(pk) == Status.CANCELLED

    def test_ready_task_of_a_paused_queue_counts(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench, queue_name="other")
        bench.engine.admissions.admit()
        bench.pause("default")

        assert bench.claim(queues=["default", "other"]) == []
        assert (admitted(bench), statuses(bench, first, second)) == (0, ["READY", "BLOCKED"])

        Queue.objects.using(bench.engine.database).update(paused_at=None)
        (claimed,) = bench.claim(queues=["default", "other"])
        bench.commit(outcome(claimed))
        assert (admitted(bench), bench.status(second)) == (1, Status.READY)

    def test_requeued_task_is_blocked_first(self, bench: Bench) -> None:
        first = limited(bench)
        (claimed,) = claim_admitted(bench)
        second = limited(bench)
        bench.commit(outcome(claimed, Status.FAILED, attempts=1, error=ERROR))
        bench.engine.admissions.admit()

        bench.engine.tasks.requeue([first])
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["BLOCKED", "READY"]

    def test_scheduled_task_is_blocked_when_it_is_due(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench, wake_after_seconds=30.0)
        bench.engine.admissions.admit()
        assert bench.status(second) == Status.SCHEDULED
        bench.time_passes(60)

        assert bench.engine.inbox.wake_due() == 1
        bench.engine.admissions.admit()
        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_suspended_actor_does_not_count_and_is_blocked_when_it_wakes(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SUSPENDED, has_succeeded=True))
        bench.engine.admissions.admit()
        assert statuses(bench, first, second) == ["SUSPENDED", "READY"]

        bench.send(first)
        assert bench.engine.messages.wake([first]) == 1
        bench.engine.admissions.admit()
        assert statuses(bench, first, second) == ["BLOCKED", "READY"]

    def test_actor_that_runs_again_still_counts(self, bench: Bench) -> None:
        first, second = limited(bench), limited(bench)
        (claimed,) = claim_admitted(bench)

        bench.commit(outcome(claimed, Status.READY, has_succeeded=True))
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_number_that_people_set_for_a_key_wins(self, bench: Bench) -> None:
        [limited(bench, 1) for _ in range(4)]
        bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:", 2)
        bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:anna", 3)

        assert admitted(bench) == 3

    def test_number_that_people_set_for_a_limit_holds_for_its_keys(self, bench: Bench) -> None:
        [limited(bench, 1, key=key) for key in ("imports:anna", "imports:bob") for _ in range(3)]
        bench.engine.admissions.admit()

        bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:", 2)

        assert admitted(bench) == 2

    def test_reset_number_is_the_declared_one_again(self, bench: Bench) -> None:
        bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:", 2)
        bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:", None)
        [limited(bench, 1) for _ in range(3)]

        assert admitted(bench) == 1

    def test_lower_limit_lets_running_tasks_continue(self, bench: Bench) -> None:
        [limited(bench, 3) for _ in range(5)]
        claimed = claim_admitted(bench)
        bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:", 1)

        bench.commit(outcome(claimed[0]))
        assert admitted(bench) == 0
        bench.commit(outcome(claimed[1]), outcome(claimed[2]))
        assert admitted(bench) == 1

    def test_tasks_of_another_backend_do_not_count(self, bench: Bench) -> None:
        other = Bench(type(bench.engine)("other", bench.engine.options))
        limited(bench)
        limited(other)

        assert admitted(bench) == 1
        assert admitted(other) == 1

    def test_no_request_is_left_when_nothing_is_blocked(self, bench: Bench) -> None:
        limited(bench)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed))
        bench.engine.admissions.admit()

        assert not AdmissionRequest.objects.using(bench.engine.database).exists()
        assert bench.engine.executors.pending_maintenance(bench.executor_id).next_admission_seconds is None

    def test_burst_is_not_over_while_a_task_can_be_admitted(self, bench: Bench) -> None:
        limited(bench)

        assert not bench.engine.queues.has_no_work_left(None, 1.0)

    @pytest.mark.parametrize("make", [limited, rated])
    def test_burst_is_over_if_only_tasks_of_closed_queues_can_be_admitted(
        self, bench: Bench, make: Callable[..., UUID]
    ) -> None:
        make(bench, key="imports:a", queue_name="paused")
        make(bench, key="imports:b", queue_name="unserved")
        bench.pause("paused")

        assert bench.engine.queues.has_no_work_left(["default", "paused"], 1.0)
        assert not bench.engine.queues.has_no_work_left(["unserved"], 1.0)
        assert not bench.engine.queues.has_no_work_left(None, 1.0)

    @pytest.mark.parametrize("make", [limited, rated])
    def test_admissible_task_behind_one_of_a_paused_queue_is_work_left(
        self, bench: Bench, make: Callable[..., UUID]
    ) -> None:
        make(bench, 2, queue_name="paused", priority=10)
        make(bench, 2)
        bench.pause("paused")

        assert not bench.engine.queues.has_no_work_left(["default", "paused"], 1.0)

    def test_commit_and_claim_admits_in_between(self, bench: Bench) -> None:
        _, second = limited(bench), limited(bench)
        (claimed,) = claim_admitted(bench)

        _, claims = bench.engine.commit_and_claim([outcome(claimed)], bench.claim_request(), should_admit=True)

        assert [task.id for task in claims] == [second]
        assert claims.admitted is not None
        assert claims.admitted.queues == {"default": 1}

    def test_claimed_task_without_limits_gets_the_declared_ones(self, bench: Bench) -> None:
        first, second = bench.add(), bench.add()
        columns = {"concurrency_key": "imports:anna", "concurrency_limit": 1}

        changed = bench.engine.admissions.impose_limits([(claimed, columns) for claimed in bench.claim()])
        bench.engine.admissions.admit()

        assert changed == {first, second}
        assert statuses(bench, first, second) == ["READY", "BLOCKED"]


def ask(bench: Bench, *keys: str, kind: str = "concurrency", seconds_ago: float = 60.0) -> None:
    due_at = bench.engine.db.now() - timedelta(seconds=seconds_ago)
    AdmissionRequest.objects.using(bench.engine.database).bulk_create(
        AdmissionRequest(backend=bench.engine.alias, kind=kind, key=key, due_at=due_at) for key in keys
    )


class Statements:
    """Count the statements that read the starts of rates."""

    def __init__(self) -> None:
        self.of_starts = 0

    def __call__(self, execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        self.of_starts += "SELECT" in sql and "FROM jobqueue_ratestart" in sql.replace('"', "")
        return execute(sql, *arguments)


class TestPlannedLook:
    """After a look that left BLOCKED tasks, nothing is counted before the time of the next start."""

    @pytest.fixture
    def planned(self, bench: Bench) -> list[UUID]:
        """Let the second of four tasks wait in READY, and the others for the end of a start's period."""
        ids = [rated(bench, 2) for _ in range(4)]
        bench.engine.admissions.admit()
        (claimed,) = bench.claim(1)
        bench.begin(claimed)
        bench.engine.admissions.admit()
        assert statuses(bench, *ids) == ["RUNNING", "READY", "BLOCKED", "BLOCKED"]
        return ids

    def counts(self, bench: Bench) -> int:
        """Look at what is requested. Return how often it has read starts."""
        statements = Statements()
        with connections[bench.engine.database].execute_wrapper(statements):
            bench.engine.admissions.admit()
        return statements.of_starts

    def test_enqueue_and_end_read_no_starts(self, bench: Bench, planned: list[UUID]) -> None:
        rated(bench, 2)
        assert self.counts(bench) == 0

        (running,) = list(bench.claim(1))
        bench.commit(outcome(running))
        assert self.counts(bench) == 0
        assert AdmissionRequest.objects.using(bench.engine.database).count() == 1

    def test_cancelled_ready_task_lets_another_start_at_once(self, bench: Bench, planned: list[UUID]) -> None:
        bench.engine.tasks.cancel([planned[1]])

        assert admitted(bench) == 1
        assert bench.status(planned[2]) == Status.READY

    def test_claim_that_never_began_lets_a_task_start_at_once(self, bench: Bench, planned: list[UUID]) -> None:
        bench.commit(outcome(bench.claim()[0], Status.READY, keeps_rank=True, begun_seconds=None))

        assert admitted(bench) == 1
        assert statuses(bench, *planned[1:]) == ["READY", "BLOCKED", "BLOCKED"]

    def test_replaced_ready_task_lets_another_start_at_once(self, bench: Bench) -> None:
        rate: dict[str, Any] = {"rate_limit": 1, "rate_seconds": 60.0}
        bench.add(key="report", rate_key="api:anna", **rate)
        second = bench.add(rate_key="api:anna", **rate)
        bench.engine.admissions.admit()

        bench.engine.enqueues.enqueue([new(key="report", on_conflict="replace", rate_key="api:bob", **rate)])

        assert admitted(bench) == 2
        assert bench.status(second) == Status.READY

    def test_raised_number_lets_tasks_start_at_once(self, bench: Bench, planned: list[UUID]) -> None:
        bench.engine.limits.set(LimitKind.RATE, "api:", 3)

        assert admitted(bench) == 1

    def test_number_raised_in_code_lets_tasks_start_at_once(self, bench: Bench, planned: list[UUID]) -> None:
        urgent = rated(bench, 3, priority=10)

        assert admitted(bench) == 1
        assert bench.status(urgent) == Status.READY

    def test_next_start_is_at_the_planned_time(self, bench: Bench, planned: list[UUID]) -> None:
        bench.time_passes(61)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())

        assert admitted(bench) == 1
        assert statuses(bench, *planned[1:]) == ["READY", "READY", "BLOCKED"]

    def test_lowered_number_plans_after_all_starts_that_are_too_many(self, bench: Bench) -> None:
        ids = [rated(bench, 3) for _ in range(4)]
        for claimed, seconds in zip(claim_admitted(bench), (30, 20, 0), strict=True):
            bench.begin(claimed)
            bench.time_passes(seconds)
        bench.engine.limits.set(LimitKind.RATE, "api:", 1)
        bench.engine.admissions.admit()

        planned = AdmissionRequest.objects.using(bench.engine.database).get(number=1)
        assert (planned.due_at - bench.engine.db.now()).total_seconds() == pytest.approx(60, abs=5)
        assert bench.status(ids[3]) == Status.BLOCKED


class TestUnstarted:
    """READY tasks that no executor starts cost nothing, and their first start goes on with the others."""

    def test_idle_key_has_no_request(self, bench: Bench) -> None:
        ids = [rated(bench, 2, queue_name="paused") for _ in range(4)]
        bench.pause("paused")
        bench.engine.admissions.admit()

        assert statuses(bench, *ids) == ["READY", "READY", "BLOCKED", "BLOCKED"]
        assert bench.engine.executors.pending_maintenance(bench.executor_id).next_admission_seconds is None

    @pytest.mark.parametrize("how", ["end", "count", "release"])
    def test_start_plans_the_next_look(self, bench: Bench, how: str) -> None:
        rated(bench, seconds=60.0)
        second = rated(bench, seconds=60.0)
        (claimed,) = claim_admitted(bench)
        if how == "end":
            bench.commit(outcome(claimed))
        elif how == "count":
            bench.begin(claimed)
        else:
            bench.engine.tasks.cancel([claimed.id])
            bench.commit(outcome(claimed, Status.CANCELLED, begun_seconds=None))
        bench.engine.admissions.admit()

        if how == "release":
            assert bench.status(second) == Status.READY
        else:
            seconds = bench.engine.executors.pending_maintenance(bench.executor_id).next_admission_seconds
            assert seconds == pytest.approx(60, abs=5)


class TestClockSetBack:
    def start_ahead(self, bench: Bench, seconds: float) -> UUID:
        """Leave a start and a planned look that are so far ahead. Return a task that waits."""
        rated(bench)
        second = rated(bench)
        bench.commit(outcome(claim_admitted(bench)[0]))
        bench.engine.admissions.admit()
        bench.time_passes(-seconds)
        due_at = bench.engine.db.now() + timedelta(seconds=seconds + 60)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=due_at)
        return second

    def test_start_far_ahead_stops_no_task(self, bench: Bench) -> None:
        second, third = self.start_ahead(bench, 3600.0), rated(bench)

        assert admitted(bench) == 1
        assert sorted(statuses(bench, second, third)) == ["BLOCKED", "READY"]

    def test_start_that_is_less_than_a_period_ahead_counts(self, bench: Bench) -> None:
        second = self.start_ahead(bench, 30.0)
        rated(bench)

        assert admitted(bench) == 0
        assert bench.status(second) == Status.BLOCKED

    def test_planned_look_is_brought_forward(self, bench: Bench) -> None:
        second = self.start_ahead(bench, 3600.0)
        assert admitted(bench) == 0

        bench.engine.admissions.bring_forward(3700.0)

        assert admitted(bench) == 1
        assert bench.status(second) == Status.READY

    def test_requests_are_brought_forward_in_batches(self, bench: Bench) -> None:
        later = bench.engine.db.now() + timedelta(hours=1)
        rows = AdmissionRequest.objects.using(bench.engine.database)
        rows.bulk_create(
            AdmissionRequest(backend=bench.engine.alias, kind="rate", key=f"key-{number}", due_at=later)
            for number in range(5)
        )
        steps: list[int | None] = [0]
        while (last := steps[-1]) is not None:
            steps.append(bench.engine.admissions.bring_forward(60.0, last, 2))

        assert len(steps) == 4
        assert {row.due_at for row in rows.all()} == {later - timedelta(seconds=60)}


class TestManyRequests:
    """No key waits for the requests of another one, however many there are."""

    @pytest.fixture(autouse=True)
    def few_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admissions.Admissions.admit_in_transaction, "__defaults__", (10,))

    def requests(self, bench: Bench) -> Any:
        return AdmissionRequest.objects.using(bench.engine.database).filter(backend=bench.engine.alias)

    def test_many_requests_of_one_key_do_not_delay_another(self, bench: Bench) -> None:
        ask(bench, *["imports:flood"] * 200)
        pk = limited(bench)

        with bench.engine.db.transaction():
            assert bench.engine.admissions.admit_in_transaction().queues == {"default": 1}

        assert bench.status(pk) == Status.READY
        assert not self.requests(bench).exists()

    def test_more_keys_than_a_look_takes_are_looked_at_next(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (admissions, postgres_admissions):
            monkeypatch.setattr(module, "KEYS_LOOKED_AT", 2)
        ids = [limited(bench, key=f"imports:{n}") for n in range(5)]

        with bench.engine.db.transaction():
            look = bench.engine.admissions.admit_in_transaction()
        assert (look.keys_seen, look.has_more) == (2, True)

        assert admitted(bench) == 3
        assert statuses(bench, *ids) == ["READY"] * 5

    def test_request_of_a_kind_of_newer_code_stays_and_delays_no_other(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        admissions.is_known.cache_clear()
        ask(bench, *["newer:anna"] * 30, kind="newer")
        pk = limited(bench)

        bench.engine.admissions.admit()

        assert bench.status(pk) == Status.READY
        assert self.requests(bench).filter(kind="newer").exists()
        assert "admission.ignored kind=newer" in caplog.text
        assert bench.engine.queues.has_no_work_left([], 1.0)


class TestManyAtOnce:
    """A look admits a part of what a large limit allows, and the next one goes on at once."""

    @pytest.fixture(autouse=True)
    def few_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admissions, "ADMITTED_AT_ONCE", 2)

    @pytest.mark.parametrize("make", [limited, rated])
    def test_large_limit_is_admitted_in_parts(self, bench: Bench, make: Callable[..., UUID]) -> None:
        ids = [make(bench, 5) for _ in range(7)]

        with bench.engine.db.transaction():
            look = bench.engine.admissions.admit_in_transaction()
        assert (look.queues, look.has_more) == ({"default": 2}, True)
        assert statuses(bench, *ids) == ["READY"] * 2 + ["BLOCKED"] * 5

        assert admitted(bench) == 3
        assert statuses(bench, *ids) == ["READY"] * 5 + ["BLOCKED"] * 2

    @pytest.mark.parametrize("make", [limited, rated])
    def test_large_limit_takes_no_turn_from_another_key(self, bench: Bench, make: Callable[..., UUID]) -> None:
        large = [make(bench, 5, key="imports:a") for _ in range(5)]
        small = make(bench, 5, key="imports:b")

        with bench.engine.db.transaction():
            look = bench.engine.admissions.admit_in_transaction()

        assert look.queues == {"default": 2}
        assert statuses(bench, small, *large) == ["READY", "READY"] + ["BLOCKED"] * 4

    def test_tasks_with_both_limits_are_admitted_in_parts(self, bench: Bench) -> None:
        rate: dict[str, Any] = {"rate_key": "api:", "rate_limit": 3, "rate_seconds": 60.0}
        ids = [limited(bench, 4, **rate) for _ in range(5)]
        for _ in range(3):
            bench.engine.admissions.admit()

        assert statuses(bench, *ids) == ["READY"] * 3 + ["BLOCKED"] * 2

    @pytest.mark.parametrize("kind", [LimitKind.CONCURRENCY, LimitKind.RATE])
    def test_number_that_people_raise_far_is_used_in_parts(self, bench: Bench, kind: LimitKind) -> None:
        make = limited if kind is LimitKind.CONCURRENCY else rated
        ids = [make(bench, 1, key="imports:a") for _ in range(7)]
        bench.engine.admissions.admit()

        bench.engine.limits.set(kind, "imports:a", 100)
        assert admitted(bench) == 6
        assert statuses(bench, *ids) == ["READY"] * 7


class TestRate:
    """It has more than 20 methods because each rule of the limit is a test."""

    def test_no_more_tasks_start_than_the_rate_allows(self, bench: Bench) -> None:
        ids = [rated(bench, 2) for _ in range(3)]

        assert admitted(bench) == 2
        assert statuses(bench, *ids) == ["READY", "READY", "BLOCKED"]

    def test_next_task_starts_when_a_start_leaves_the_window(self, bench: Bench) -> None:
        _, second = rated(bench), rated(bench)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed))
        bench.time_passes(59)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        assert admitted(bench) == 0

        bench.time_passes(2)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        assert admitted(bench) == 1
        assert bench.status(second) == Status.READY

    def test_next_look_is_when_the_oldest_start_leaves_the_window(self, bench: Bench) -> None:
        [rated(bench) for _ in range(2)]
        bench.begin(*claim_admitted(bench))
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        bench.engine.admissions.admit()

        seconds = bench.engine.executors.pending_maintenance(bench.executor_id).next_admission_seconds
        assert seconds == pytest.approx(60, abs=5)

    def test_many_requests_leave_one_planned_look(self, bench: Bench) -> None:
        for _ in range(5):
            rated(bench)
            for claimed in claim_admitted(bench):
                bench.begin(claimed)
            bench.engine.admissions.admit()

        (planned,) = AdmissionRequest.objects.using(bench.engine.database).all()
        assert planned.number == 1

    def test_ready_tasks_that_have_not_started_count(self, bench: Bench) -> None:
        [rated(bench, 2) for _ in range(4)]
        bench.engine.admissions.admit()
        bench.time_passes(3600)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())

        assert admitted(bench) == 0

    def test_each_attempt_counts(self, bench: Bench) -> None:
        first, second = rated(bench, 2), rated(bench, 2, wake_after_seconds=1.0)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=0.0))
        bench.engine.inbox.wake_due()
        (again,) = claim_admitted(bench)
        assert again.id == first
        bench.commit(outcome(again))
        bench.time_passes(2)
        bench.engine.inbox.wake_due()
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.BLOCKED

    def test_best_rank_starts_first(self, bench: Bench) -> None:
        low, high = rated(bench), rated(bench, priority=50)

        assert admitted(bench) == 1
        assert statuses(bench, low, high) == ["BLOCKED", "READY"]

    def test_cancelled_task_that_has_not_started_does_not_count(self, bench: Bench) -> None:
        first, second = rated(bench), rated(bench)
        bench.engine.admissions.admit()

        bench.engine.tasks.cancel([first])
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["CANCELLED", "READY"]

    def test_requeued_task_waits_for_its_rate(self, bench: Bench) -> None:
        pk = rated(bench)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.FAILED, attempts=1, error=ERROR))

        bench.engine.tasks.requeue([pk])

        assert admitted(bench) == 0
        assert bench.status(pk) == Status.BLOCKED

    def test_claim_that_never_started_takes_nothing_from_the_rate(self, bench: Bench) -> None:
        first, second = rated(bench, seconds=3600.0), rated(bench, seconds=3600.0)
        for _ in range(2):
            bench.engine.commits.release(claim_admitted(bench))
            bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    @pytest.mark.parametrize("how", ["release", "expire", "cancel"])
    def test_start_that_is_given_back_is_used_at_once(self, bench: Bench, how: str) -> None:
        """Not when the next start leaves the window, although a look is requested for then."""
        first, second, third = (rated(bench, 2, seconds=3600.0) for _ in range(3))
        bench.engine.admissions.admit()
        (claimed,) = bench.claim(limit=1)
        assert claimed.id == first
        bench.commit(outcome(claimed))
        bench.engine.admissions.admit()
        assert statuses(bench, second, third) == ["READY", "BLOCKED"]
        (claimed,) = bench.claim()
        if how == "release":
            bench.engine.commits.release([claimed])
        elif how == "expire":
            bench.commit(outcome(claimed, Status.FAILED, begun_seconds=None))
        else:
            bench.engine.tasks.cancel([second])
            bench.commit(outcome(claimed, Status.READY, begun_seconds=None))
        bench.engine.admissions.admit()

        expected = ["READY", "BLOCKED"] if how == "release" else ["READY"]
        assert statuses(bench, *((second, third) if how == "release" else (third,))) == expected

    def test_claim_that_never_started_leaves_earlier_starts_counted(self, bench: Bench) -> None:
        first, second = rated(bench, 2), rated(bench, 2, wake_after_seconds=1.0)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=0.0))
        bench.engine.inbox.wake_due()
        for _ in range(2):
            (again,) = claim_admitted(bench)
            assert again.id == first
            bench.engine.commits.release([again])
        (again,) = claim_admitted(bench)
        bench.commit(outcome(again))
        bench.time_passes(2)
        bench.engine.inbox.wake_due()
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.BLOCKED

    def test_claim_whose_answer_was_lost_takes_nothing_from_the_rate(self, bench: Bench) -> None:
        pk = rated(bench, seconds=3600.0)
        claim_admitted(bench)

        assert bench.engine.commits.release_unknown_claims(bench.executor_id, own_claims=()) == 1
        bench.engine.admissions.admit()

        assert bench.status(pk) == Status.READY

    def test_expired_task_takes_nothing_from_the_rate(self, bench: Bench) -> None:
        rated(bench, expires_after_seconds=10.0)
        second = rated(bench)
        bench.time_passes(20)
        (claimed,) = claim_admitted(bench)
        assert claimed.is_expired
        bench.commit(outcome(claimed, Status.FAILED, begun_seconds=None))
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.READY

    def test_claimed_task_counts_however_late_it_starts(self, bench: Bench) -> None:
        """Otherwise its body could start just before that of the next task."""
        _, second = rated(bench), rated(bench)
        (claimed,) = claim_admitted(bench)
        bench.time_passes(3600)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        assert admitted(bench) == 0

        assert bench.begin(claimed) == {claimed.id}
        bench.time_passes(59)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        assert admitted(bench) == 0

        bench.time_passes(2)
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        assert (admitted(bench), bench.status(second)) == (1, Status.READY)

    def test_start_counts_from_when_the_body_has_begun(self, bench: Bench) -> None:
        _, second = rated(bench), rated(bench)
        (claimed,) = claim_admitted(bench)

        bench.commit(outcome(claimed, begun_seconds=61.0))

        assert (admitted(bench), bench.status(second)) == (1, Status.READY)

    @pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.SUCCESSFUL])
    def test_start_that_was_counted_while_it_ran_is_not_counted_again(self, bench: Bench, status: Status) -> None:
        rated(bench, 2, seconds=3600.0)
        (claimed,) = claim_admitted(bench)
        assert bench.begin(claimed) == {claimed.id}

        bench.commit(outcome(claimed, status, wake_after_seconds=60.0))

        assert RateStart.objects.using(bench.engine.database).count() == 1

    def test_each_start_of_a_released_task_is_counted(self, bench: Bench) -> None:
        rated(bench, 2, seconds=3600.0)
        for _ in range(2):
            (claimed,) = claim_admitted(bench)
            bench.begin(claimed)
            bench.engine.commits.release([claimed])

        assert RateStart.objects.using(bench.engine.database).count() == 2
        assert claim_admitted(bench) == []

    def test_start_of_a_lost_claim_is_not_counted(self, bench: Bench) -> None:
        rated(bench, 2)
        (claimed,) = claim_admitted(bench)
        bench.engine.commits.release([claimed])
        (again,) = claim_admitted(bench)

        assert bench.begin(claimed) == set()
        assert bench.begin(again) == {again.id}
        assert RateStart.objects.using(bench.engine.database).count() == 1

    def test_rescued_task_starts_again_within_the_rate(self, bench: Bench) -> None:
        """It is unknown whether its body had begun."""
        bench.beat()
        pk = rated(bench)
        claim_admitted(bench)
        bench.time_passes(100)
        assert len(bench.engine.executors.rescue()) == 1
        bench.engine.admissions.admit()

        assert bench.status(pk) == Status.BLOCKED

    @pytest.mark.parametrize("how", ["release", "rescue"])
    def test_task_that_starts_again_comes_before_those_behind_it(self, bench: Bench, how: str) -> None:
        bench.beat()
        first, second = rated(bench, seconds=300.0), rated(bench, seconds=300.0)
        claims = claim_admitted(bench)
        bench.begin(*claims)
        if how == "release":
            bench.engine.commits.release(claims)
        bench.time_passes(400)
        if how == "rescue":
            assert len(bench.engine.executors.rescue()) == 1
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())
        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_deleted_task_still_counts(self, bench: Bench) -> None:
        first, second = rated(bench, seconds=86_400.0), rated(bench, seconds=86_400.0)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed))
        assert bench.engine.tasks.prune_status(Status.SUCCESSFUL, 0.0) == 1
        AdmissionRequest.objects.using(bench.engine.database).update(due_at=bench.engine.db.now())

        assert admitted(bench) == 0
        assert bench.status(second) == Status.BLOCKED
        assert first != second

    def test_start_of_a_task_that_gets_another_rate_still_counts(self, bench: Bench) -> None:
        rate: dict[str, Any] = {"rate_limit": 1, "rate_seconds": 60.0}
        bench.add(key="report", rate_key="api:anna", **rate)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=60.0))

        bench.engine.enqueues.enqueue([new(key="report", on_conflict="replace", rate_key="api:bob", **rate)])
        second = rated(bench, key="api:anna")
        bench.engine.admissions.admit()

        assert bench.status(second) == Status.BLOCKED

    def test_shorter_window_is_not_kept_waiting_by_a_request_for_later(self, bench: Bench) -> None:
        rated(bench, seconds=3600.0)
        bench.begin(*claim_admitted(bench))
        rated(bench, seconds=3600.0)
        bench.engine.admissions.admit()
        rated(bench, seconds=60.0, priority=10)
        bench.engine.admissions.admit()

        seconds = bench.engine.executors.pending_maintenance(bench.executor_id).next_admission_seconds
        assert seconds == pytest.approx(60, abs=5)

    def test_task_that_gets_its_declared_rate_has_not_started(self, bench: Bench) -> None:
        columns = {"rate_key": "api:", "rate_limit": 1, "rate_seconds": 60.0}
        first, second = bench.add(), bench.add()
        bench.engine.admissions.impose_limits([(claimed, columns) for claimed in bench.claim()])

        bench.engine.admissions.admit()

        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_ready_task_of_a_paused_queue_uses_up_a_start(self, bench: Bench) -> None:
        first, second = rated(bench, queue_name="paused"), rated(bench)
        bench.pause("paused")

        assert claim_admitted(bench) == []
        assert statuses(bench, first, second) == ["READY", "BLOCKED"]

    def test_old_starts_are_pruned(self, bench: Bench) -> None:
        rated(bench)
        (claimed,) = claim_admitted(bench)
        bench.commit(outcome(claimed))
        bench.engine.tasks.prune_status(Status.SUCCESSFUL, 0.0)
        RateStart.objects.using(bench.engine.database).update(expires_at=bench.engine.db.now())
        bench.engine.tasks.prune()

        assert not RateStart.objects.using(bench.engine.database).exists()

    def test_task_with_both_limits_needs_both(self, bench: Bench) -> None:
        both: dict[str, Any] = {"rate_key": "api:", "rate_limit": 1, "rate_seconds": 60.0}
        first, second = limited(bench, key="imports:anna", **both), limited(bench, key="imports:bob", **both)
        third = limited(bench, key="imports:anna", **both)

        bench.engine.admissions.admit()

        assert statuses(bench, first, second, third) == ["READY", "BLOCKED", "BLOCKED"]
        assert [bench.row(pk).counts_while_waiting for pk in (first, second, third)] == [False, True, False]


class TestReplace:
    def replace(self, bench: Bench, **changes: Any) -> Any:
        (answer,) = bench.engine.enqueues.enqueue([new(key="digest", on_conflict="replace", **changes)])
        return answer

    def test_waiting_task_gets_the_new_values(self, bench: Bench) -> None:
        pk = bench.add(key="digest", args="[1]")

        answer = self.replace(bench, args="[2]", priority=5, wake_after_seconds=60.0)

        row = bench.row(pk)
        assert (answer.id, answer.created, answer.status) == (pk, False, Status.SCHEDULED)
        assert (row.args, row.priority, row.status) == ([2], 5, Status.SCHEDULED)

    def test_replaced_task_with_a_limit_is_blocked(self, bench: Bench) -> None:
        first = limited(bench)
        pk = bench.add(key="digest")
        bench.engine.admissions.admit()

        self.replace(bench, concurrency_key="imports:anna", concurrency_limit=1)
        bench.engine.admissions.admit()

        assert statuses(bench, first, pk) == ["READY", "BLOCKED"]

    def test_running_task_gives_its_key_to_the_new_one(self, bench: Bench) -> None:
        running = bench.running(key="digest")

        answer = self.replace(bench, args="[2]")

        assert (answer.created, answer.status) == (True, Status.READY)
        assert bench.claim_ids() == [answer.id]
        assert bench.row(running.id).taken_over_by_id == answer.id
        bench.commit(outcome(running))
        assert statuses(bench, running.id, answer.id) == ["SUCCESSFUL", "RUNNING"]

    def test_new_holder_answers_for_the_key_while_both_are_live(self, bench: Bench) -> None:
        bench.running(key="digest")
        new_holder = self.replace(bench, args="[2]")

        assert bench.add(key="digest") == new_holder.id
        assert bench.engine.messages.find_keys(["digest"]) == {"digest": new_holder.id}
        second = self.replace(bench, args="[3]")
        assert (second.id, second.created) == (new_holder.id, False)
        assert bench.row(new_holder.id).args == [3]

    def test_key_is_free_after_the_end_of_its_new_holder(self, bench: Bench) -> None:
        bench.running(key="digest")
        new_holder = self.replace(bench)
        bench.engine.tasks.cancel([new_holder.id])

        assert self.replace(bench).created

    def test_key_passes_on_from_one_running_task_to_the_next(self, bench: Bench) -> None:
        first = bench.running(key="digest")
        second = self.replace(bench)
        (claimed,) = bench.claim()
        third = self.replace(bench)

        assert bench.row(first.id).taken_over_by_id == second.id == claimed.id
        assert bench.row(second.id).taken_over_by_id == third.id
        assert statuses(bench, first.id, second.id, third.id) == ["RUNNING", "RUNNING", "READY"]

    def test_task_that_lost_its_key_is_retried_beside_the_new_holder(self, bench: Bench) -> None:
        running = bench.running(key="digest")
        new_holder = self.replace(bench)
        bench.commit(outcome(running, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=60.0))

        assert self.replace(bench).id == new_holder.id
        bench.time_passes(61)
        bench.engine.inbox.wake_due()
        assert statuses(bench, running.id, new_holder.id) == ["READY", "READY"]

    def test_concurrency_limit_prevents_the_overlap(self, bench: Bench) -> None:
        limit: dict[str, Any] = {"concurrency_key": "imports:anna", "concurrency_limit": 1}
        bench.add(key="digest", **limit)
        bench.engine.admissions.admit()
        (running,) = bench.claim()
        new_holder = self.replace(bench, **limit)
        bench.engine.admissions.admit()
        assert bench.status(new_holder.id) == Status.BLOCKED

        bench.commit(outcome(running))
        bench.engine.admissions.admit()

        assert bench.status(new_holder.id) == Status.READY

    def test_actor_that_has_polled_gives_its_key_away(self, bench: Bench) -> None:
        actor = bench.running(key="digest")
        bench.commit(outcome(actor, Status.SUSPENDED, has_succeeded=True))

        new_holder = self.replace(bench)

        assert statuses(bench, actor.id, new_holder.id) == ["SUSPENDED", "READY"]

    def test_free_key_is_simply_taken(self, bench: Bench) -> None:
        assert self.replace(bench).created

    def test_requeued_task_asks_for_its_key_again(self, bench: Bench) -> None:
        running = bench.running(key="digest")
        new_holder = self.replace(bench)
        bench.commit(outcome(running, Status.FAILED, attempts=1, error=ERROR))

        assert bench.engine.tasks.requeue([running.id]).key_taken == 1
        bench.engine.tasks.cancel([new_holder.id])
        assert bench.engine.tasks.requeue([running.id]).requeued == 1
        assert bench.add(key="digest") == running.id


class TestDebounce:
    def call(self, bench: Bench, wait: float = 30.0, max_wait: float | None = 100.0) -> UUID:
        row = new(key="reindex", on_conflict="replace", wake_after_seconds=wait, max_wait_seconds=max_wait)
        return bench.engine.enqueues.enqueue([row])[0].id

    def wait_left(self, bench: Bench, pk: UUID) -> float:
        return (bench.moment(pk, "wake_at") - bench.engine.db.now()).total_seconds()

    def test_each_call_pushes_the_start(self, bench: Bench) -> None:
        pk = self.call(bench)
        bench.time_passes(20)

        assert self.call(bench) == pk
        assert self.wait_left(bench, pk) == pytest.approx(30, abs=5)

    def test_start_is_pushed_no_further_than_the_longest_wait(self, bench: Bench) -> None:
        pk = self.call(bench)
        bench.time_passes(90)
        self.call(bench)

        assert self.wait_left(bench, pk) == pytest.approx(10, abs=5)
        bench.time_passes(20)
        self.call(bench)
        assert bench.status(pk) == Status.READY

    def test_call_during_the_run_waits_and_takes_over_the_key(self, bench: Bench) -> None:
        running = bench.running(key="reindex")

        pk = self.call(bench)

        assert (bench.status(pk), self.call(bench)) == ("SCHEDULED", pk)
        assert bench.row(running.id).taken_over_by_id == pk


class TestUniqueFor:
    def call(self, bench: Bench, seconds: float = 3600.0, **changes: Any) -> Any:
        (answer,) = bench.engine.enqueues.enqueue([new(key="welcome", unique_for_seconds=seconds, **changes)])
        return answer

    def test_ended_task_keeps_the_key_for_the_time(self, bench: Bench) -> None:
        first = self.call(bench)
        bench.commit(outcome(bench.claim()[0]))

        second = self.call(bench)

        assert (second.id, second.created) == (first.id, False)

    def test_answer_names_the_task_that_has_the_key_without_a_time(self, bench: Bench) -> None:
        holder = bench.running(key="welcome")

        assert self.call(bench).id == holder.id
        bench.commit(outcome(holder))

        assert self.call(bench).id == holder.id

    def test_key_is_free_after_the_time(self, bench: Bench) -> None:
        self.call(bench, 0.001)
        bench.commit(outcome(bench.claim()[0]))

        assert self.call(bench).created

    def test_deleted_task_keeps_the_key_for_the_time(self, bench: Bench) -> None:
        self.call(bench)
        bench.commit(outcome(bench.claim()[0]))
        bench.engine.tasks.prune_status(Status.SUCCESSFUL, 0.0)

        assert not self.call(bench).created

    def test_replace_changes_only_a_task_that_waits(self, bench: Bench) -> None:
        first = self.call(bench, args="[1]")
        assert self.call(bench, args="[2]", on_conflict="replace").id == first.id
        (claimed,) = bench.claim()
        assert claimed.args == "[2]"

        third = self.call(bench, args="[3]", on_conflict="replace")

        assert (third.id, third.created) == (first.id, False)
        assert bench.row(first.id).args == [2]


@pytest.mark.parametrize("make", [lambda bench: bench.add(key="k"), lambda bench: bench.running(key="k")])
def test_raise_on_conflict_inserts_nothing(bench: Bench, make: Callable[[Bench], Any]) -> None:
    make(bench)
    before = bench.engine.db.tasks.count()

    with pytest.raises(DuplicateKey, match="'k'"):
        bench.engine.enqueues.enqueue([new(), new(key="k", on_conflict="raise")])

    assert bench.engine.db.tasks.count() == before

"""AWAITING_CODE on every engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.engine import code_waits
from jobqueue.engine.code_waits import ReadyHead
from jobqueue.engine.postgres import code_waits as postgres_code_waits
from jobqueue.models import AdmissionRequest
from jobqueue.values.states import LimitKind, PoolName, Status
from tests.engine.bench import ERROR, Bench, new, outcome

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])

HEADS = [ReadyHead("default", PoolName.THREADS), ReadyHead("default", PoolName.ASYNC)]
ENTRY = {"attempt": 1, "exception_class_path": "jobqueue.exceptions.UnknownTask", "awaited": "name"}


def awaiting(bench: Bench, longest: float | None = None, **changes: Any) -> UUID:
    """Return a task that waits for code."""
    bench.add(**changes)
    (claimed,) = bench.claim()
    assert bench.commit(outcome(claimed, Status.AWAITING_CODE, wake_after_seconds=longest)).done
    return claimed.id


def park(
    bench: Bench,
    longest: float | None = None,
    limit: int = code_waits.HEAD_TASKS,
    heads: Sequence[code_waits.Head] = HEADS,
) -> Counter[str]:
    """Let the tasks with names such as "gone" wait for code, unless their arguments are [1]."""

    def judge(name: str, call: code_waits.StoredCall) -> code_waits.Verdict | None:
        return None if json.loads(call.args) == [1] else code_waits.Verdict(json.dumps(ENTRY), longest)

    parked = bench.engine.code_waits.park(
        heads, lambda queue, name: queue == "default" and name.startswith("gone"), judge, limit
    )
    return sum(parked.values(), Counter())


def calls(bench: Bench, **places: Any) -> list[UUID]:
    waits = bench.engine.code_waits
    return [call.id for group in waits.groups() for call in waits.calls(group, 10, **places)]


def test_task_that_awaits_code_is_neither_claimed_nor_counted_as_ready(bench: Bench) -> None:
    pk = awaiting(bench)

    assert bench.claim_ids() == []
    assert bench.engine.queues.queue_latency() == []
    assert bench.engine.queues.has_no_work_left(None, 0.0)
    row = bench.row(pk)
    assert (row.status, row.attempts, row.executor_id, row.claimed_at) == (Status.AWAITING_CODE, 0, None, None)
    assert (row.started_at, row.last_attempted_at, row.wake_at) == (None, None, None)


def test_task_that_has_run_keeps_its_last_start_while_it_awaits_code(bench: Bench) -> None:
    claimed = bench.running()
    bench.commit(outcome(claimed, Status.READY, attempts=1, worker_id=str(bench.executor_id), error=ERROR))
    (claimed,) = bench.claim(queues=[claimed.queue_name])
    bench.commit(outcome(claimed, Status.AWAITING_CODE, attempts=1))

    row = bench.row(claimed.id)
    assert row.started_at is not None
    assert row.last_attempted_at is not None


@pytest.mark.parametrize(
    ("longest", "expires", "ends"),
    [(None, None, None), (100.0, None, 100.0), (None, 50.0, 50.0), (100.0, 50.0, 50.0), (100.0, 500.0, 100.0)],
)
def test_wait_for_code_ends_at_the_earlier_of_its_ends(
    bench: Bench, longest: float | None, expires: float | None, ends: float | None
) -> None:
    pk = awaiting(bench, longest, expires_after_seconds=expires)

    wake_at = bench.row(pk).wake_at
    if ends is None:
        assert wake_at is None
    else:
        assert wake_at is not None
        assert ends - 20 < (wake_at - bench.engine.db.now()).total_seconds() <= ends


def test_cancelled_task_does_not_wait_for_code(bench: Bench) -> None:
    claimed = bench.running()
    bench.engine.tasks.cancel([claimed.id])

    bench.commit(outcome(claimed, Status.AWAITING_CODE))

    assert bench.status(claimed.id) == Status.CANCELLED


def test_child_that_awaits_code_does_not_notify_its_parent(bench: Bench) -> None:
    parent = bench.suspended()
    child = awaiting(bench, parent_id=parent)

    assert (bench.status(child), bench.status(parent)) == (Status.AWAITING_CODE, Status.SUSPENDED)
    bench.engine.tasks.cancel([child])
    assert len(bench.inbox(parent)) == 1


def test_park_takes_the_ready_tasks_of_names_out_of_the_queue(bench: Bench) -> None:
    gone = [bench.add(task_type="gone") for _ in range(3)]
    with_code = bench.add()
    later = bench.add(task_type="gone", pool=PoolName.ASYNC)
    elsewhere = bench.add(task_type="gone", queue_name="other")
    failed = bench.running(task_type="gone")
    bench.commit(outcome(failed, Status.READY, attempts=1, error=ERROR))
    bench.set(failed.id, queue_name="default")

    counts = park(bench)

    assert counts == {"gone": 5}
    assert bench.claim_ids() == [with_code]
    assert bench.status(elsewhere) == Status.READY
    assert {bench.status(pk) for pk in [*gone, later]} == {Status.AWAITING_CODE}
    assert [bench.row(pk).errors for pk in (gone[0], failed.id)] == [
        [ENTRY],
        [{"attempt": 1, "exception_class_path": "builtins.ValueError", "traceback": "..."}],
    ]
    assert park(bench) == {}


def test_park_leaves_calls_that_fit(bench: Bench) -> None:
    fits, other = bench.add(task_type="gone", args="[1]"), bench.add(task_type="gone", args="[2]")

    assert park(bench, 100.0) == {"gone": 1}
    assert bench.claim_ids() == [fits]
    assert bench.row(other).wake_at is not None


def test_park_reads_a_bounded_number_of_tasks(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new(task_type="gone") for _ in range(25)])

    counts = [park(bench, limit=10)["gone"] for _ in range(4)]

    assert counts == [10, 10, 5, 0]


def test_park_of_many_names_makes_as_many_statements_as_that_of_one(bench: Bench) -> None:
    made = []
    for number_of_names in (1, 100):
        bench.engine.enqueues.enqueue([new(task_type=f"gone{number % number_of_names}") for number in range(200)])
        with CaptureQueriesContext(connections[bench.engine.database]) as queries:
            counts = park(bench)
        assert (len(counts), counts.total()) == (number_of_names, 200)
        made.append(len(queries))

    assert made[0] == made[1]


def test_park_skips_tasks_that_another_session_claims_meanwhile(bench: Bench) -> None:
    claimed, other = bench.add(task_type="gone"), bench.add(task_type="gone")

    def judge(name: str, call: code_waits.StoredCall) -> code_waits.Verdict:
        bench.set(claimed, status=Status.RUNNING)
        return code_waits.Verdict(json.dumps(ENTRY), None)

    parked = bench.engine.code_waits.park(HEADS[:1], lambda queue, name: True, judge)

    assert parked == {HEADS[0]: {"gone": 1}}
    assert (bench.status(claimed), bench.status(other)) == (Status.RUNNING, Status.AWAITING_CODE)


@pytest.mark.parametrize("kind", LimitKind)
def test_park_takes_tasks_that_a_key_blocks(bench: Bench, kind: LimitKind) -> None:
    limits: dict[str, Any] = {f"{kind}_key": "k:", f"{kind}_limit": 1}
    if kind == LimitKind.RATE:
        limits["rate_seconds"] = 3600.0
    holder = bench.add(**limits)
    bench.engine.admissions.admit()
    gone = [bench.add(task_type=f"gone{number}", **limits) for number in range(3)]
    with_code, other_queue = bench.add(**limits), bench.add(task_type="gone", queue_name="other", **limits)
    other_key = bench.add(task_type="gone", **limits | {f"{kind}_key": "k:x"})
    assert (bench.status(holder), bench.status(gone[0])) == (Status.READY, Status.BLOCKED)

    counts = park(bench, heads=[code_waits.BlockedHead(kind, "k:")])

    assert counts == {f"gone{number}": 1 for number in range(3)}
    assert {bench.status(pk) for pk in gone} == {Status.AWAITING_CODE}
    assert {bench.status(pk) for pk in (with_code, other_queue, other_key)} == {Status.BLOCKED}
    assert bench.status(holder) == Status.READY


def test_park_reads_no_more_heads_than_the_limit_allows(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new(task_type="gone") for _ in range(3)])
    bench.add(task_type="gone", pool=PoolName.ASYNC)

    def waits(name: str, call: code_waits.StoredCall) -> code_waits.Verdict:
        return code_waits.Verdict(json.dumps(ENTRY), None)

    first = bench.engine.code_waits.park(HEADS, lambda queue, name: True, waits, 3)
    both = bench.engine.code_waits.park(HEADS, lambda queue, name: True, waits, 3)

    assert first == {HEADS[0]: {"gone": 3}}
    assert both == {HEADS[0]: {}, HEADS[1]: {"gone": 1}}


def test_park_gives_the_places_of_limits_back(bench: Bench) -> None:
    limit = {"concurrency_key": "k:", "concurrency_limit": 1}
    first, second = bench.add(task_type="gone", **limit), bench.add(**limit)
    bench.engine.admissions.admit()
    assert (bench.status(first), bench.status(second)) == (Status.READY, Status.BLOCKED)

    park(bench)
    bench.engine.admissions.admit()

    assert (bench.status(first), bench.status(second)) == (Status.AWAITING_CODE, Status.READY)


def test_groups_name_the_queues_and_tasks_that_await_code(bench: Bench) -> None:
    first = awaiting(bench, task_type="b")
    awaiting(bench, task_type="b")
    bench.set(awaiting(bench, task_type="a"), queue_name="other")
    Bench(type(bench.engine)("elsewhere", bench.engine.options))

    groups = bench.engine.code_waits.groups()

    assert [group[:2] for group in groups] == [("default", "b"), ("other", "a")]
    assert groups[0].since == bench.row(first).awaits_code_since


def test_groups_are_read_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (code_waits, postgres_code_waits):
        monkeypatch.setattr(module, "MAX_GROUPS", 2)
    for queue_name, task_type in [("default", "b"), ("other", "a"), ("default", "a"), ("other", "b")]:
        bench.set(awaiting(bench, task_type=task_type), queue_name=queue_name)
    read = bench.engine.code_waits.groups

    first = read()
    last = read(first[-1][:2])

    assert [group[:2] for group in first + last] == [("default", "a"), ("default", "b"), ("other", "a"), ("other", "b")]
    assert read(last[-1][:2]) == []


def test_calls_are_read_in_pages_from_both_ends(bench: Bench) -> None:
    ids = [awaiting(bench, args=f"[{number}]") for number in range(5)]
    (group,) = bench.engine.code_waits.groups()
    waits = bench.engine.code_waits
    last = waits.calls(group, 2)

    assert [call.id for call in last] == [ids[4], ids[3]]
    assert [waiting.call.args for waiting in last] == ["[4]", "[3]"]
    assert calls(bench, before=last[-1].position) == [ids[2], ids[1], ids[0]]
    assert calls(bench, after=last[-1].position) == [ids[4]]
    assert calls(bench, after=last[0].position) == []


def test_task_whose_code_has_come_is_claimed_with_its_old_rank(bench: Bench) -> None:
    first = awaiting(bench, 100.0)
    rank = bench.row(first).rank
    second = bench.add()

    _, claims = bench.engine.commit_and_claim([], bench.claim_request(), returning=[first])

    assert [claimed.id for claimed in claims] == [first, second]
    assert claims.returned == 1
    row = bench.row(first)
    assert (row.rank, row.wake_at, row.awaits_code_since) == (rank, None, None)


def test_no_more_tasks_return_than_a_claim_may_take(bench: Bench) -> None:
    ids = [awaiting(bench) for _ in range(5)]

    _, claims = bench.engine.commit_and_claim([], bench.claim_request(2), returning=ids)

    assert (len(claims), claims.returned) == (2, 2)
    assert bench.engine.db.tasks.awaiting_code().count() == 3


def test_task_with_a_limit_returns_and_is_admitted_by_the_same_claim(bench: Bench) -> None:
    bench.add(concurrency_key="k:", concurrency_limit=1)
    bench.engine.admissions.admit()
    (claimed,) = bench.claim()
    bench.commit(outcome(claimed, Status.AWAITING_CODE))
    AdmissionRequest.objects.using(bench.engine.database).all().delete()

    _, claims = bench.engine.commit_and_claim([], bench.claim_request(), returning=[claimed.id])

    assert [claim.id for claim in claims] == [claimed.id]


@pytest.mark.parametrize("how", ["stale", "stopped", "never begun"])
def test_task_whose_body_has_begun_keeps_its_place_uncounted(bench: Bench, how: str) -> None:
    limit: dict[str, Any] = {"concurrency_key": "imports:anna", "concurrency_limit": 1}
    bench.add(count_while_retrying=True, **limit)
    other = bench.add(**limit)
    bench.engine.admissions.admit()
    (claimed,) = bench.claim()
    if how == "stale":
        bench.commit(outcome(claimed, Status.SCHEDULED, stale_polls=1, wake_after_seconds=0.0))
        bench.engine.inbox.wake_due()
    elif how == "stopped":
        bench.commit(outcome(claimed, Status.READY, worker_id="old", keeps_rank=True))
    else:
        bench.engine.commits.release([claimed])
    (claimed,) = bench.claim()
    bench.commit(outcome(claimed, Status.AWAITING_CODE, stale_polls=claimed.stale_polls, error=ERROR))
    bench.engine.admissions.admit()

    expected = Status.READY if how == "never begun" else Status.BLOCKED
    assert bench.status(other) == expected


def test_task_that_holds_its_place_between_attempts_keeps_it(bench: Bench) -> None:
    limit = {"concurrency_key": "k:", "concurrency_limit": 1}
    bench.add(count_while_retrying=True, **limit)
    bench.engine.admissions.admit()
    (claimed,) = bench.claim()
    bench.commit(outcome(claimed, Status.AWAITING_CODE, attempts=1))
    other = bench.add(**limit)
    bench.engine.admissions.admit()
    assert (bench.row(claimed.id).counts_while_waiting, bench.status(other)) == (True, Status.BLOCKED)

    _, claims = bench.engine.commit_and_claim([], bench.claim_request(), returning=[claimed.id])

    assert [claim.id for claim in claims] == [claimed.id]
    assert not bench.row(claimed.id).counts_while_waiting


def test_ended_waits_are_claimed_to_end_the_tasks(bench: Bench) -> None:
    ended, going_on, without = awaiting(bench, 100.0), awaiting(bench, 1000.0), awaiting(bench)
    bench.time_passes(200)

    claims = bench.engine.code_waits.claim_ended(bench.executor_id)

    assert [claimed.id for claimed in claims] == [ended]
    assert bench.status(ended) == Status.RUNNING
    assert {bench.status(pk) for pk in (going_on, without)} == {Status.AWAITING_CODE}
    assert bench.commit(outcome(claims[0], Status.FAILED, error=ERROR)).done == {ended: Status.FAILED}


def test_expired_task_that_awaits_code_is_claimed_as_expired(bench: Bench) -> None:
    awaiting(bench, expires_after_seconds=100.0)
    bench.time_passes(200)

    (claimed,) = bench.engine.code_waits.claim_ended(bench.executor_id)

    assert claimed.is_expired


def test_requeued_task_awaits_code_no_more(bench: Bench) -> None:
    pk = awaiting(bench, key="k")
    assert bench.add(key="k") == pk
    bench.engine.tasks.cancel([pk])

    bench.engine.tasks.requeue([pk])

    assert bench.claim_ids() == [pk]
    assert bench.row(pk).enqueued_at - bench.engine.db.now() < timedelta(0)


def test_task_that_awaits_code_is_replaced_by_a_new_call(bench: Bench) -> None:
    pk = awaiting(bench, key="k")

    bench.add(key="k", on_conflict="replace", args="[7]")

    assert [(claimed.id, claimed.args) for claimed in bench.claim()] == [(pk, "[7]")]

"""Concurrent sessions on PostgreSQL: no deadlock, no double claim, no lost wake-up."""

from collections.abc import Iterator
from threading import Barrier, Event, Lock
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.values.changes import RequeueReport
from jobqueue.values.records import NewMessage, NewTask, Outcome
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.engine.sessions import threads
from tests.waiting import DEADLINE_SECONDS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(params=["portable-on-postgresql", "postgresql"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return make_bench(request.param)


@pytest.fixture
def fast_bench() -> Bench:
    return make_bench("postgresql")


def is_fast(bench: Bench) -> bool:
    return isinstance(bench.engine, PostgresEngine)


def commit_all(bench: Bench, outcomes: list[Outcome]) -> Iterator[int]:
    """Commit as an executor does: repeat outcomes of locked rows."""
    deadline = monotonic() + DEADLINE_SECONDS
    while outcomes:
        assert monotonic() < deadline, "rows stay locked"
        answer = bench.commit(*outcomes)
        assert not answer.lost
        assert not answer.refused
        yield len(answer.done)
        outcomes = [outcome for outcome in outcomes if outcome.task_id in answer.unknown]


@pytest.mark.parametrize("limit", [7, 100])
def test_concurrent_claims_return_each_task_once(bench: Bench, limit: int) -> None:
    count = 2000 if is_fast(bench) else 400
    make_bench("postgresql").engine.enqueues.enqueue([new(queue_name=f"q{number % 3}") for number in range(count)])
    barrier = Barrier(4)

    def claim_all() -> list[UUID]:
        claimed_ids: list[UUID] = []
        other = Bench(bench.engine)
        deadline = monotonic() + DEADLINE_SECONDS
        barrier.wait(DEADLINE_SECONDS)
        while bench.engine.db.tasks.ready().exists():
            assert monotonic() < deadline
            claims = other.claim_ids(limit, queues=["q0", "q1", "q2"])
            assert len(claims) <= limit
            claimed_ids += claims
        return claimed_ids

    with threads(4) as start:
        claimers = [start(claim_all) for _ in range(4)]
        claimed = [pk for claimer in claimers for pk in claimer.result(2 * DEADLINE_SECONDS)]

    assert len(claimed) == len(set(claimed)) == count
    assert set(bench.engine.db.tasks.values_list("status", "claim_number")) == {("RUNNING", 1)}


@pytest.mark.django_db(transaction=True, databases=["sqlite"])
def test_threads_share_one_sqlite_file() -> None:
    bench, count, barrier = make_bench("sqlite"), 60, Barrier(2)
    bench.engine.enqueues.enqueue([new() for _ in range(count)])

    def work() -> list[UUID]:
        other, claimed_ids, deadline = Bench(bench.engine), list[UUID](), monotonic() + DEADLINE_SECONDS
        barrier.wait(DEADLINE_SECONDS)
        while bench.engine.db.tasks.ready().exists():
            assert monotonic() < deadline
            claims = other.claim(5)
            claimed_ids += other.commit(*(outcome(claimed) for claimed in claims)).done
        return claimed_ids

    with threads(2) as start:
        workers = [start(work) for _ in range(2)]
        done = [pk for worker in workers for pk in worker.result(2 * DEADLINE_SECONDS)]

    assert len(done) == len(set(done)) == count
    assert bench.engine.db.tasks.successful().count() == count


@pytest.mark.parametrize("queues", [["default"], ["default", "other", "third"]])
def test_claim_keeps_limit_under_nested_loop_plan(bench: Bench, queues: list[str]) -> None:
    """`WHERE id IN (SELECT ... LIMIT 5 FOR UPDATE SKIP LOCKED)` took 2,000 of 2,000 under this plan."""
    make_bench("postgresql").engine.enqueues.enqueue(
        [new(queue_name=queues[number % len(queues)]) for number in range(2000)]
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off"
        )
        try:
            claimed = bench.claim_ids(5, queues=queues)
        finally:
            cursor.execute("RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_material; RESET enable_memoize")

    assert len(claimed) == 5
    assert bench.engine.db.tasks.running().count() == 5


@pytest.mark.parametrize("verb", ["enqueue", "send"])
def test_batches_with_same_keys_in_other_order_do_not_deadlock(fast_bench: Bench, verb: str) -> None:
    engine, receiver = fast_bench.engine, fast_bench.add()
    barrier = Barrier(2)

    def write(order: int) -> int:
        written = 0
        for round_number in range(10):
            keys = [f"{round_number}-{number}" for number in range(50)][::order]
            barrier.wait(DEADLINE_SECONDS)
            if verb == "enqueue":
                written += sum(answer.created for answer in engine.enqueues.enqueue([new(key=key) for key in keys]))
            else:
                written += len(
                    engine.messages.send([NewMessage(task_id=receiver, body="1", dedupe_key=key) for key in keys])
                )
        return written

    with threads(2) as start:
        writers = [start(write, order) for order in (1, -1)]
        assert sum(writer.result(2 * DEADLINE_SECONDS) for writer in writers) == 10 * 50


def end_by_hand(key: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "UPDATE jobqueue_task SET status = 'SUCCESSFUL', finished_at = clock_timestamp()"
            " WHERE key = %s AND finished_at IS NULL",
            [key],
        )


class TestContendedKey:
    """The task with the key changes all the time. Each call must return a task with that key."""

    def test_enqueue_returns_task_that_briefly_had_the_key(self, fast_bench: Bench) -> None:
        old, holders = fast_bench.ended(key="k"), list[UUID]()

        def comes_and_goes(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if "jobqueue_enqueue(" not in sql:
                return execute(sql, params, many, context)
            with threads(1) as start:
                holders.append(start(lambda: fast_bench.add(key="k")).result(DEADLINE_SECONDS))
                result = execute(sql, params, many, context)
                start(end_by_hand, "k").result(DEADLINE_SECONDS)
            return result

        with connection.execute_wrapper(comes_and_goes):
            rows = [new(key="k"), new(key="other"), new(key="k")]
            answers = fast_bench.engine.enqueues.enqueue(rows)

        (holder,) = holders
        assert [answer.id for answer in answers] == [holder, rows[1].id, holder]
        assert [answer.created for answer in answers] == [False, True, False]
        assert holder != old
        assert answers[0].status is Status.SUCCESSFUL

    @pytest.mark.parametrize(("how", "calls"), [("python", 150), ("sql", 1000)])
    def test_every_enqueue_of_a_contended_key_returns_a_task(self, fast_bench: Bench, how: str, calls: int) -> None:
        callers, is_over, barrier = 8, Event(), Barrier(10)

        def enqueue(row: NewTask) -> UUID:
            if how == "python":
                return fast_bench.engine.enqueues.enqueue([row])[0].id
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT jobqueue_create_task(%s, 'tests.noop', key => 'k')", [row.id])
                ((pk,),) = cursor.fetchall()
            assert isinstance(pk, UUID)
            return pk

        def enqueue_all() -> list[tuple[UUID, UUID]]:
            barrier.wait(DEADLINE_SECONDS)
            rows = [new(key="k") for _ in range(calls)]
            return [(row.id, enqueue(row)) for row in rows]

        def end_all() -> None:
            barrier.wait(DEADLINE_SECONDS)
            while not is_over.is_set():
                end_by_hand("k")

        with threads(callers + 2) as start:
            enders = [start(end_all) for _ in range(2)]
            storm = [start(enqueue_all) for _ in range(callers)]
            try:
                answers = [answer for caller in storm for answer in caller.result(2 * DEADLINE_SECONDS)]
            finally:
                is_over.set()
            for ender in enders:
                ender.result(DEADLINE_SECONDS)

        inserted = {new_id for new_id, returned in answers if new_id == returned}
        assert len(answers) == calls * callers
        assert (
            {returned for _, returned in answers}
            == inserted
            == set(fast_bench.engine.db.tasks.values_list("pk", flat=True))
        )

    def test_requeue_reports_taken_key_under_contention(self, bench: Bench) -> None:
        failed, plain = bench.ended(Status.FAILED, key="k"), bench.ended(Status.FAILED)

        def comes_and_goes(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if not sql.startswith('UPDATE "jobqueue_task" SET "status"'):
                return execute(sql, params, many, context)
            with threads(1) as start:
                start(lambda: bench.add(key="k")).result(DEADLINE_SECONDS)
                try:
                    return execute(sql, params, many, context)
                finally:
                    start(end_by_hand, "k").result(DEADLINE_SECONDS)

        with connection.execute_wrapper(comes_and_goes):
            report = bench.engine.tasks.requeue([failed, plain])

        assert report == RequeueReport(requeued=1, key_taken=1)
        assert (bench.status(failed), bench.status(plain)) == ("FAILED", "READY")


def test_concurrent_idempotency_keys_are_used_once(bench: Bench) -> None:
    keys = [f"k{number}" for number in range(20)]
    start = Barrier(6)

    def submit(offset: int) -> list[UUID]:
        rotated = keys[offset:] + keys[:offset]
        start.wait(DEADLINE_SECONDS)
        answers = bench.engine.enqueues.enqueue_once([new(idempotency_key=key) for key in rotated])
        return [answer.id for _, answer in sorted(zip(rotated, answers, strict=True), key=lambda pair: pair[0])]

    with threads(6) as run:
        results = [running.result(DEADLINE_SECONDS) for running in [run(submit, number * 3) for number in range(6)]]

    assert all(ids == results[0] for ids in results)
    assert bench.engine.db.tasks.count() == len(keys)


class TestLimits:
    """A queue with a limit of three running tasks."""

    LIMIT = 3

    @pytest.fixture(autouse=True)
    def limit(self, bench: Bench) -> None:
        bench.limit("a", self.LIMIT)

    def test_limit_holds_under_concurrent_commits_and_claims(self, bench: Bench) -> None:
        count = 300 if is_fast(bench) else 60
        make_bench("postgresql").engine.enqueues.enqueue([new(queue_name="a") for _ in range(count)])
        barrier, is_over, running_count, max_running, lock = Barrier(5), Event(), [0], [0], Lock()

        def hold(change: int) -> None:
            with lock:
                running_count[0] += change
                max_running[0] = max(max_running[0], running_count[0])

        def work() -> int:
            other, done, outcomes = Bench(bench.engine), 0, list[Outcome]()
            deadline = monotonic() + DEADLINE_SECONDS
            assert bench.engine.db.tasks.exists()  # opens the connection before the start
            barrier.wait(DEADLINE_SECONDS)
            while outcomes or bench.engine.db.tasks.ready().exists():
                assert monotonic() < deadline
                hold(-len(outcomes))
                request = other.claim_request(2, queues=["a", "b"], limited=["a"])
                committed, claims = other.engine.commit_and_claim(outcomes, request)
                hold(len(claims))
                assert len(committed.done) == len(outcomes)
                done, outcomes = done + len(outcomes), [outcome(claimed) for claimed in claims]
            return done

        def watch() -> int:
            highest = 0
            barrier.wait(DEADLINE_SECONDS)
            while not is_over.is_set():
                highest = max(highest, bench.engine.db.tasks.running().count())
            return highest

        with threads(5) as start:
            watching, working = start(watch), [start(work) for _ in range(4)]
            try:
                done = [work.result(2 * DEADLINE_SECONDS) for work in working]
            finally:
                is_over.set()
            seen = watching.result(DEADLINE_SECONDS)

        assert sum(done) == count
        assert sum(1 for work in done if work) > 1, "one did it all"
        assert 0 < max(seen, max_running[0]) <= self.LIMIT

    def test_claim_skips_limited_queue_during_other_claim(self, bench: Bench) -> None:
        """Two claims that count at once would each take three tasks."""
        other = Bench(bench.engine)
        bench.engine.enqueues.enqueue([new(queue_name="a") for _ in range(5)])
        wanted = bench.add(queue_name="b")

        with threads(1) as start:
            with transaction.atomic():
                assert len(bench.claim(2, queues=["a"], limited=["a"])) == 2
                claims = start(lambda: other.claim(queues=["a", "b"], limited=["a"])).result(DEADLINE_SECONDS)
                assert ([claimed.id for claimed in claims], claims.locked_queues) == ([wanted], {"a"})
            claims = start(lambda: other.claim(queues=["a", "b"], limited=["a"])).result(DEADLINE_SECONDS)

        assert (len(claims), claims.locked_queues) == (1, frozenset())

    def test_uncommitted_end_frees_no_place_for_claim(self, bench: Bench) -> None:
        other = Bench(bench.engine)
        bench.engine.enqueues.enqueue([new(queue_name="a") for _ in range(5)])
        claims = bench.claim(queues=["a"], limited=["a"])

        with threads(1) as start:
            with transaction.atomic():
                bench.commit(*[outcome(claimed) for claimed in claims])
                claimed_ids = start(lambda: other.claim_ids(queues=["a"], limited=["a"])).result(DEADLINE_SECONDS)
                assert claimed_ids == []
            claimed_ids = start(lambda: other.claim_ids(queues=["a"], limited=["a"])).result(DEADLINE_SECONDS)

        assert len(claimed_ids) == 2

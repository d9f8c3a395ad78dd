"""run_now, discard, delete, and write reports, on every engine."""

import pytest

from jobqueue.models import InboxMessage, Task, TaskLog, TaskProgress
from jobqueue.values.changes import ChangeReport
from jobqueue.values.ids import new_id
from jobqueue.values.reports import BodyLog, LogLine, Progress, parse_lines
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def retrying(bench: Bench):
    claimed = bench.running()
    bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=600.0))
    return claimed.id


def failed(bench: Bench):
    claimed = bench.running()
    bench.commit(outcome(claimed, Status.FAILED, attempts=1, error=ERROR))
    return claimed.id


def later(bench: Bench):
    return bench.add(wake_after_seconds=600.0)


@pytest.mark.parametrize("make", [later, retrying, Bench.suspended])
def test_run_now_lets_a_waiting_task_be_claimed(bench: Bench, make) -> None:
    pk = make(bench)
    attempts = bench.row(pk).attempts

    assert bench.engine.tasks.run_now([pk, pk]) == ChangeReport(changed=1)

    row = bench.row(pk)
    assert (row.status, row.wake_at, row.attempts, row.timed_out) == ("READY", None, attempts, False)
    assert [claimed.id for claimed in bench.claim(queues=[row.queue_name])] == [pk]


def test_run_now_leaves_a_task_with_a_full_limit_blocked(bench: Bench) -> None:
    limit = {"concurrency_key": "a:1", "concurrency_limit": 1}
    first = bench.add(**limit)
    bench.engine.admissions.admit()
    pk = bench.add(wake_after_seconds=600.0, **limit)

    assert bench.engine.tasks.run_now([pk]) == ChangeReport(changed=1)

    bench.engine.admissions.admit()
    assert (bench.row(first).status, bench.row(pk).status) == ("READY", "BLOCKED")


def test_run_now_skips_tasks_in_other_states(bench: Bench) -> None:
    ended, running, ready = bench.ended(), bench.running().id, bench.add()

    assert bench.engine.tasks.run_now([ended, running, ready, new_id()]) == ChangeReport(skipped=4)


def test_discard_makes_a_failed_task_cancelled(bench: Bench) -> None:
    pk, other = failed(bench), bench.ended()

    assert bench.engine.tasks.discard([pk, other]) == ChangeReport(changed=1, skipped=1)

    assert (bench.row(pk).status, bench.row(other).status) == ("CANCELLED", "SUCCESSFUL")
    assert len(bench.row(pk).errors) == 1
    assert bench.engine.tasks.requeue([pk]).requeued == 1


def test_delete_removes_ended_tasks_with_their_messages(bench: Bench) -> None:
    ended, live = failed(bench), bench.suspended()
    InboxMessage.objects.using(bench.engine.database).create(task_id=ended, body=1, sent_at=bench.engine.db.now())

    assert bench.engine.tasks.delete([ended, live]) == ChangeReport(changed=1, skipped=1)

    assert bench.engine.db.by_ids([ended, live]).values_list("pk", flat=True).get() == live
    assert not bench.engine.db.messages.filter(task_id=ended).exists()


def progress(claimed, **changes):
    return Progress(**{"task_id": claimed.id, "claim_number": claimed.claim_number, "done": 1.0} | changes)


class TestProgress:
    def test_newest_report_of_the_claim_is_kept(self, bench: Bench) -> None:
        first, second, ended = bench.running(), bench.running(), bench.ended()
        gone = progress(first, task_id=new_id())

        bench.engine.reports.write([progress(second), progress(first), gone])
        newer = progress(first, done=2.0, total=3.0, note="two")
        bench.engine.reports.write([newer, progress(second, claim_number=0)])

        rows = {row.pk: row for row in TaskProgress.objects.using(bench.engine.database)}
        assert rows.keys() == {first.id, second.id}
        assert (rows[first.id].done, rows[first.id].total, rows[first.id].note) == (2.0, 3.0, "two")
        assert rows[second.id].claim_number == 1
        assert bench.status(ended) == "SUCCESSFUL"

    def test_progress_is_deleted_with_its_task(self, bench: Bench) -> None:
        claimed, other = bench.running(), bench.running()
        bench.engine.reports.write([progress(claimed), progress(other)])
        bench.commit(outcome(claimed))

        bench.engine.tasks.delete([claimed.id])

        assert [row.pk for row in TaskProgress.objects.using(bench.engine.database)] == [other.id]


def log(claimed, text="hello", **changes):
    lines = [LogLine(at=1.5, level="INFO", logger="shop", message=text)]
    values = {"task_id": claimed.id, "claim_number": claimed.claim_number, "dropped": 0, "lines": lines}
    return BodyLog(**values | changes)


def written(bench: Bench):
    rows = TaskLog.objects.using(bench.engine.database).order_by("task_id", "claim_number")
    return [(row.task_id, row.claim_number, row.dropped, parse_lines(row.lines)[0].message) for row in rows]


class TestLogs:
    def test_newest_lines_of_each_claim_are_kept(self, bench: Bench) -> None:
        first, second = sorted((bench.running(), bench.running()), key=lambda claim: claim.id)

        bench.engine.reports.write(
            logs=[log(second), log(first), log(first, task_id=new_id()), log(first, claim_number=2)]
        )
        bench.engine.reports.write(logs=[log(first, "later \U0001f600", dropped=2**40)])

        assert written(bench) == [(first.id, 1, 2**40, "later \U0001f600"), (second.id, 1, 0, "hello")]

    def test_lines_of_an_ended_claim_are_written(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.commit(outcome(claimed, Status.READY))
        bench.claim()

        bench.engine.reports.write(logs=[log(claimed)])

        assert written(bench) == [(claimed.id, 1, 0, "hello")]

    def test_lines_of_the_newest_twenty_claims_are_kept(self, bench: Bench) -> None:
        claimed, other = bench.running(), bench.running()
        bench.engine.reports.write(logs=[log(claimed), log(other)])
        Task.objects.using(bench.engine.database).filter(pk=claimed.id).update(claim_number=21)

        bench.engine.reports.write(logs=[log(claimed, claim_number=number) for number in range(15, 22)])

        assert [number for pk, number, *_ in written(bench) if pk == claimed.id] == [*range(15, 22)]
        assert [number for pk, number, *_ in written(bench) if pk == other.id] == [1]

    def test_lines_are_deleted_with_their_task(self, bench: Bench) -> None:
        claimed, other, pruned = bench.running(), bench.running(), bench.running()
        bench.engine.reports.write(logs=[log(claimed), log(other), log(pruned)])
        bench.commit(outcome(claimed), outcome(pruned, Status.FAILED, attempts=1, error=ERROR))

        bench.engine.tasks.delete([claimed.id])
        bench.engine.tasks.prune_status("FAILED", 0.0)

        assert [pk for pk, *_ in written(bench)] == [other.id]


def test_prune_deletes_reports_whose_task_is_gone(bench: Bench) -> None:
    kept = bench.running()
    bench.engine.reports.write(logs=[log(kept)])
    bench.engine.reports.write([Progress(task_id=kept.id, claim_number=kept.claim_number, done=1.0)])
    using = bench.engine.database
    theirs = Bench(type(bench.engine)("theirs", bench.engine.options)).add()
    gone = [new_id() for _ in range(5)]
    for pk in (theirs, *gone):
        TaskLog.objects.using(using).create(task_id=pk, claim_number=1, dropped=0, lines="[]")
        TaskProgress.objects.using(using).create(
            task_id=pk, claim_number=1, done=1.0, note="", reported_at=bench.engine.db.now()
        )

    for _ in range(4):
        bench.engine.tasks.prune(2)

    for model in (TaskLog, TaskProgress):
        left = model._default_manager.using(using).values_list("task_id", flat=True)
        assert set(left) == {kept.id, theirs}

"""A bulk action as a task of the queue: exactly the counted tasks, a rate, progress and a stop."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from jobqueue import api, testing
from jobqueue.models import Task
from jobqueue.operations.bulk import actor as bulk_actor
from jobqueue.operations.bulk import target as bulk
from jobqueue.operations.bulk.actions import CANCEL, REQUEUE
from jobqueue.operations.bulk.target import Target, WalkPosition
from jobqueue.operations.list.selection import Selection
from tests.admin.pages import BOTH, LIST_URL, messages_of, status_of, task_url
from tests.factories import ExecutorFactory, ago, make_user, now
from tests.waiting import wait_until

pytestmark = BOTH


@pytest.fixture
def select(backend):
    return lambda **filters: Selection(backend, {"backend": backend, **filters})


@pytest.fixture
def start(backend):
    """Enqueue the task of an action. Return the function that polls it."""

    def begin(target, rate=None):
        result = bulk_actor.start(target, rate)
        return lambda: testing.poll_once(result.id, backend=backend)

    return begin


def row_of(task_id, backend):
    return Task.objects.using(backend).get(pk=task_id)


def bulk_row(backend):
    return Task.objects.using(backend).get(task_type=bulk_actor.NAME)


def result_of(backend):
    return {name: number for name, number in bulk_row(backend).return_value.items() if number}


def test_more_than_a_request_can_change_is_done_by_a_task(client, staff, make, backend, monkeypatch):
    monkeypatch.setattr("jobqueue.admin.bulk_actions.MAX_IN_REQUEST", 2)
    rows = [make(failed=True) for _ in range(3)]
    address = f"{LIST_URL}?backend={backend}&status=FAILED"
    ticked = {"action": "requeue_selected", "_selected_action": "all", "select_across": "1"}
    page = client.post(address, ticked)
    assert "This runs in the background;" in page.content.decode()

    response = client.post(address, dict(page.context["hidden"]))

    task = bulk_row(backend)
    assert response.url == task_url(task)
    assert messages_of(response) == ["This runs in the background; cancel this task to stop it."]
    assert {status_of(row) for row in rows} == {"FAILED"}
    before = client.get(task_url(task)).content.decode()
    testing.poll_once(task.pk, backend=backend)
    after = client.get(task_url(task)).content.decode()
    assert {status_of(row) for row in rows} == {"READY"}
    assert "3 failed or cancelled tasks will be requeued" in before
    assert "will be requeued" not in after
    assert "0 of 3" in before
    assert "3 of 3" in after
    assert "Requeued 3 tasks." in after
    assert "Requeue 3 tasks.<" in after  # in the history


def test_rate_is_a_form_of_the_confirmation(client, staff, make, backend):
    for _ in range(3):
        make(failed=True)
    address = f"{LIST_URL}?backend={backend}"
    data = {"action": "requeue_selected", "_selected_action": "all", "select_across": "1"}
    page = client.post(address, data)
    fields = dict(page.context["hidden"])

    refused = client.post(address, fields | {"rate": "0"})
    client.post(address, fields | {"rate": "2"})

    assert "greater than or equal to 1" in refused.content.decode()
    assert 'value="Requeue 3 tasks"' in refused.content.decode()
    assert bulk_row(backend).kwargs == {"rate": 2}


def test_reader_without_view_payload_cannot_guess_arguments_with_an_action(client, make, backend):
    """The bounds of a form can be forged. The task must search no more than the list of its author."""
    client.force_login(make_user("view_task", "requeue_task"))
    row = make(failed=True, kwargs={"order_id": 57})
    address = f"{LIST_URL}?backend={backend}&q=args.order_id:57"
    bounds = replace(bulk.Bounds.now(backend), number=1)
    data = {"action": "requeue_selected", "_selected_action": "all", "select_across": "1", "bounds": str(bounds)}

    client.post(address, data | {"rate": "1"})
    testing.poll_once(bulk_row(backend).pk, backend=backend)

    assert status_of(row) == "FAILED"
    assert result_of(backend) == {"moved": 1}


@pytest.fixture
def wait_for_next_batch(backend):
    """Wait in real time: the state of the task names the time of its next batch."""
    return lambda: wait_until(lambda: bulk_row(backend).wake_at <= now(), "the next batch")


def test_rate_limits_the_tasks_of_each_second(make, select, start, wait_for_next_batch, backend):
    rows = [make(failed=True) for _ in range(5)]
    poll = start(Target.of(select(status="FAILED"), REQUEUE), rate=2)

    poll()
    assert [status_of(row) for row in rows].count("READY") == 2
    task = bulk_row(backend)
    assert task.status == "SUSPENDED"
    assert task.wake_at - task.last_attempted_at >= timedelta(seconds=1)
    for _ in range(2):
        wait_for_next_batch()
        poll()

    assert {status_of(row) for row in rows} == {"READY"}
    assert result_of(backend) == {"requeued": 5}


@pytest.mark.parametrize("is_by_message", [False, True])
def test_rate_is_kept_by_a_task_that_is_woken(make, select, start, wait_for_next_batch, backend, is_by_message):
    rows = [make(failed=True) for _ in range(5)]
    poll = start(Target.of(select(status="FAILED"), REQUEUE), rate=4)
    poll()
    wake_at, pk = bulk_row(backend).wake_at, bulk_row(backend).pk

    if is_by_message:
        api.send(pk, None, backend=backend)
    else:
        assert api.run_now(pk, backend=backend).changed == 1
    poll()

    assert [status_of(row) for row in rows].count("READY") == 4
    assert (bulk_row(backend).status, bulk_row(backend).wake_at) == ("SUSPENDED", wake_at)
    wait_for_next_batch()
    poll()
    assert {status_of(row) for row in rows} == {"READY"}


def test_cancelled_task_leaves_the_others_as_they_are(make, select, start, backend):
    rows = [make(failed=True) for _ in range(5)]
    poll = start(Target.of(select(status="FAILED"), REQUEUE), rate=2)
    poll()

    assert api.cancel(bulk_row(backend).pk, backend=backend).cancelled == 1

    assert sorted(status_of(row) for row in rows) == ["FAILED"] * 3 + ["READY"] * 2


def test_tasks_that_changed_since_are_counted_as_changed(make, select, start, backend):
    rows = [make(failed=True) for _ in range(3)]
    poll = start(Target.of(select(status="FAILED"), REQUEUE))
    Task.objects.using(backend).filter(pk=rows[0].pk).delete()

    poll()

    assert result_of(backend) == {"requeued": 2, "moved": 1}
    assert REQUEUE.describe(result_of(backend)) == (
        "Requeued 2 tasks. 1 task has changed since it was counted, and was left alone."
    )


@pytest.mark.parametrize(
    ("status", "before", "after"),
    [
        ("SCHEDULED", {"running": True}, {"status": "SCHEDULED", "executor_id": None}),
        ("SCHEDULED", {}, {"status": "SCHEDULED", "last_attempted_at": "now"}),
        ("SUSPENDED", {"running": True}, {"status": "SUSPENDED", "executor_id": None}),
        ("READY", {"scheduled": True}, {"status": "READY", "wake_at": None, "rank": "now"}),
        ("RUNNING", {}, {"status": "RUNNING", "last_attempted_at": "now"}),
        ("FAILED", {"running": True}, {"status": "FAILED", "finished_at": "now"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_task_that_enters_the_status_later_is_not_changed(make, select, backend, status, before, after):
    row = make(**before)
    counted = make(**({} if status == "READY" else {status.lower(): True}))
    action = REQUEUE if status == "FAILED" else CANCEL
    target = Target.of(select(status=status), action)

    moved = {name: now() if value == "now" else value for name, value in after.items()}
    Task.objects.using(backend).filter(pk=row.pk).update(**{"wake_at": now()} | moved)

    assert target.bounds.number == 1
    assert target.take(WalkPosition(), 10)[0] == [counted.pk]


def test_running_task_counts_for_a_cancel_of_every_status(make, select, backend):
    row = make()
    target = Target.of(select(), CANCEL)
    Task.objects.using(backend).filter(pk=row.pk).update(status="RUNNING", last_attempted_at=now())

    assert target.take(WalkPosition(), 10)[0] == [row.pk]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("status", ["READY", "SCHEDULED", "SUSPENDED", "FAILED", ""])
def test_walk_meets_each_task_once(make, select, monkeypatch, status, size):
    monkeypatch.setattr(bulk, "WALKED", 2)
    trait = {} if status == "READY" else {(status or "FAILED").lower(): True}
    moments = [ago(50), ago(50), ago(40), ago(40), ago(40), ago(30), ago(20)]
    column = {"READY": "rank", "SCHEDULED": "wake_at", "SUSPENDED": "last_attempted_at"}.get(status, "finished_at")
    rows = [make(**trait, **{column: moment}) for moment in moments]
    if status == "READY":
        places = [("default", "async"), ("later", "async"), ("later", "threads"), ("zoo", "threads")]
        rows += [make(queue_name=queue, pool=pool, rank=at) for queue, pool in places for at in moments[:3]]
    if not status:
        rows += [make(), make(suspended=True), make(cancelled=True)]
    action = REQUEUE if status in ("FAILED", "") else CANCEL
    target = Target.of(select(**({"status": status} if status else {})), action)

    met: list[UUID] = []
    position: WalkPosition | None = WalkPosition()
    while position is not None:
        batch, position = target.take(position, size)
        assert len(batch) <= size
        met += batch

    wanted = [row.pk for row in rows if row.status in action.statuses]
    assert sorted(met) == sorted(wanted)
    assert target.bounds.number == len(wanted)


def test_target_survives_json(make, select):
    make(failed=True)
    target = Target.of(select(status="FAILED", queue="default"), REQUEUE)

    again = Target.parse(target.as_json())

    assert (again.bounds.number, again.bounds.upto, again.action) == (1, target.bounds.upto, REQUEUE)
    assert again.take(WalkPosition(), 5)[0] == target.take(WalkPosition(), 5)[0] != []


def test_task_goes_to_a_queue_with_executors(make, select, backend):
    target = Target.of(select(status="FAILED"), REQUEUE)

    assert row_of(bulk_actor.start(target).id, backend).queue_name == "default"
    ExecutorFactory.create(backend=backend, using=backend, queues=["emails"])
    assert row_of(bulk_actor.start(target).id, backend).queue_name == "emails"
    ExecutorFactory.create(backend=backend, using=backend, queues=[])
    assert row_of(bulk_actor.start(target).id, backend).queue_name == "default"

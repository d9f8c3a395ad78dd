"""No function of the API waits longer than its bound for a lock of another transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection

import jobqueue
from jobqueue import api
from jobqueue.api import limits, schedules, tasks
from jobqueue.declarations.actions import Send
from jobqueue.engine import database, engine_for
from jobqueue.models import InboxMessage, Limit, Queue, Schedule, Task
from jobqueue.values.changes import CancelReport, ChangeReport, RequeueReport
from jobqueue.values.ids import new_id
from jobqueue.values.states import Command, LimitKind, Status
from tests.engine.sessions import Session, session
from tests.factories import ExecutorFactory, TaskFactory
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

ENDED = {"finished_at": "2020-01-01T00:00:00Z"}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten the bounds. A statement that has none fails."""
    monkeypatch.setattr(tasks, "LOCK_WAIT_SECONDS", 0.3)
    monkeypatch.setattr(database, "CALLER_LOCK_WAIT", "100ms")
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '20s'")
        yield
        cursor.execute("RESET statement_timeout")


@pytest.fixture
def stranger() -> Iterator[Session]:
    with session() as other:
        yield other


def test_cancel_of_tasks_with_a_locked_parent_reports_them_busy(stranger: Session) -> None:
    parent, free = TaskFactory.create(), TaskFactory.create()
    children = [TaskFactory.create(parent_id=parent.pk) for _ in range(2)]
    running = TaskFactory.create(parent_id=parent.pk, status=Status.RUNNING)
    stranger.lock(parent.pk, strength="UPDATE")

    report = jobqueue.cancel([*(child.pk for child in children), running.pk, free.pk])

    assert report == CancelReport(cancelled=1, requested=1, busy=frozenset(child.pk for child in children))
    stranger.rollback()
    assert jobqueue.cancel(report.busy).cancelled == 2
    assert InboxMessage.objects.filter(task=parent).count() == 2


def test_requeue_leaves_tasks_with_an_uncommitted_key(stranger: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those: the others of the batch are requeued."""
    rows = [TaskFactory.create(status=Status.FAILED, key=f"key-{n}", **ENDED) for n in range(8)]
    stranger.run("UPDATE jobqueue_task SET key = 'key-8' WHERE id = %s", rows[0].pk)
    stranger.run(
        "INSERT INTO jobqueue_task SELECT (jsonb_populate_record(task, jsonb_build_object("
        "'id', gen_random_uuid(), 'status', 'READY', 'finished_at', NULL))).* FROM jobqueue_task AS task WHERE id = %s",
        rows[5].pk,
    )

    assert jobqueue.requeue(rows[5].pk) == RequeueReport(busy=frozenset({rows[5].pk}))

    monkeypatch.setattr(tasks, "LOCK_WAIT_SECONDS", DEADLINE_SECONDS)
    left: list[set[UUID]] = []

    def look_and_commit(seconds: float) -> None:
        left.append({*Task.objects.filter(status=Status.FAILED).values_list("pk", flat=True)})
        stranger.commit()

    monkeypatch.setattr("jobqueue.api.tasks.time.sleep", look_and_commit)

    assert jobqueue.requeue([row.pk for row in rows]) == RequeueReport(requeued=7, key_taken=1)
    assert left == [{rows[0].pk, rows[5].pk}]


CHANGES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "cancel": (jobqueue.cancel, {}, CancelReport),
    "requeue": (jobqueue.requeue, {"status": Status.FAILED, **ENDED}, RequeueReport),
    "run_now": (api.run_now, {"status": Status.SUSPENDED}, ChangeReport),
    "discard": (api.discard, {"status": Status.FAILED, **ENDED}, ChangeReport),
    "delete": (api.delete, {"status": Status.FAILED, **ENDED}, ChangeReport),
}


@pytest.mark.parametrize("table", ["jobqueue_task", "jobqueue_inboxmessage", "jobqueue_admissionrequest"])
@pytest.mark.parametrize("name", CHANGES)
def test_change_in_spite_of_a_locked_table_ends_with_a_report(name: str, table: str, stranger: Session) -> None:
    do, columns, report_class = CHANGES[name]
    pk = TaskFactory.create(**columns).pk
    TaskFactory.create(parent_id=pk, **ENDED, status=Status.FAILED)
    stranger.run(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

    report = do([pk, new_id()], backend="default")

    assert pk in report.busy or report != report_class(skipped=2)


def test_delete_of_a_task_with_a_locked_message_reports_it_busy(stranger: Session) -> None:
    ended, free = (TaskFactory.create(status=Status.FAILED, **ENDED) for _ in range(2))
    message = InboxMessage.objects.create(task=ended, body=None, sent_at="2020-01-01T00:00:00Z")
    stranger.run("SELECT FROM jobqueue_inboxmessage WHERE id = %s FOR UPDATE", message.pk)

    assert api.delete([ended.pk, free.pk]) == ChangeReport(changed=1, busy=frozenset({ended.pk}))


def make_schedule() -> Schedule:
    schedule, _ = engine_for("default").schedules.save(
        "nightly", {"task_type": "tests.noop", "new_task": {"task_type": "tests.noop"}, "expression": "@every 86400"}
    )
    return schedule


ROWS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "wake": (lambda: TaskFactory.create(status=Status.SUSPENDED), lambda row: api.wake(row.pk)),
    "send": (lambda: TaskFactory.create(status=Status.SUSPENDED), lambda row: api.send(row.pk, 1)),
    "send_many": (lambda: TaskFactory.create(), lambda row: api.send_many([Send(row.pk, 1, dedupe_key="k")])),
    "pause": (lambda: Queue.objects.create(backend="default", name="mail"), lambda row: api.pause("mail")),
    "resume": (lambda: Queue.objects.create(backend="default", name="mail"), lambda row: api.resume("mail")),
    "limit_queue": (
        lambda: Queue.objects.create(backend="default", name="mail"),
        lambda row: api.limit_queue("mail", 3),
    ),
    "schedules.pause": (make_schedule, lambda row: schedules.pause("nightly")),
    "schedules.resume": (make_schedule, lambda row: schedules.resume("nightly")),
    "schedules.run": (make_schedule, lambda row: schedules.run("nightly")),
    "schedules.delete": (make_schedule, lambda row: schedules.delete("nightly")),
    "set_limit": (
        lambda: Limit.objects.create(
            backend="default", kind="concurrency", key="x:1", number=1, changed_at="2020-01-01T00:00:00Z"
        ),
        lambda row: limits.set_limit(LimitKind.CONCURRENCY, "x:1", 2),
    ),
    "reset_limit": (
        lambda: Limit.objects.create(
            backend="default", kind="concurrency", key="x:1", number=1, changed_at="2020-01-01T00:00:00Z"
        ),
        lambda row: limits.reset_limit(LimitKind.CONCURRENCY, "x:1"),
    ),
    "command": (
        lambda: ExecutorFactory.create(lost=True),
        lambda row: api.command([row.pk], Command.PAUSE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("action", ["resume", "limit"])
def test_admin_says_that_a_queue_is_locked(admin_client: Any, action: str, stranger: Session) -> None:
    free, locked = (Queue.objects.create(backend="default", name=name, max_running=1) for name in ("a", "b"))
    stranger.run("SELECT FROM jobqueue_queue WHERE id = %s FOR UPDATE", locked.pk)

    data = {"action": action, "queue": ["a", "b"], "confirmed": "1", "max_running": "7"}
    response = admin_client.post("/admin/jobqueue/queue/?backend=default", data)

    assert "Nothing was changed: another transaction has locked a queue." in response.content.decode()
    free.refresh_from_db()
    assert free.max_running == 1


@pytest.mark.parametrize("name", ROWS)
def test_function_with_a_locked_row_raises_within_its_bound(name: str, stranger: Session) -> None:
    make, call = ROWS[name]
    row = make()
    stranger.run(f"SELECT FROM {row._meta.db_table} WHERE id = %s FOR UPDATE", row.pk)

    with pytest.raises(OperationalError, match=r"another transaction has locked .* Try again later"):
        call(row)

    stranger.rollback()
    call(row)


def test_repeat_of_an_uncommitted_message_raises_within_its_bound(stranger: Session) -> None:
    pk = TaskFactory.create(status=Status.SUSPENDED).pk
    stranger.run(
        "INSERT INTO jobqueue_inboxmessage (task_id, body, dedupe_key, sent_at) VALUES (%s, '1', 'k', now())", pk
    )

    with pytest.raises(OperationalError, match="another transaction has locked"):
        api.send(pk, 1, dedupe_key="k")

    stranger.rollback()
    assert api.send(pk, 1, dedupe_key="k") is not None
    assert Task.objects.get(pk=pk).status == Status.READY

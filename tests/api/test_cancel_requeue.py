"""jobqueue.cancel and jobqueue.requeue: which databases they ask, and what they do about rows that others hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from django.test.utils import CaptureQueriesContext

import jobqueue
from jobqueue import api
from jobqueue.api import tasks
from jobqueue.models import Queue, Task
from jobqueue.values.changes import CancelReport, ChangeReport, RequeueReport
from jobqueue.values.ids import new_id
from jobqueue.values.states import Status
from tests.engine.sessions import session
from tests.factories import TaskFactory
from tests.waiting import DEADLINE_SECONDS

BOTH = pytest.mark.django_db(databases=["default", "sqlite"])


def failed(**columns: Any) -> Task:
    return TaskFactory.create(status=Status.FAILED, finished_at="2020-01-01T00:00:00Z", **columns)


class TestOneDatabase:
    """A site's TestCase allows the default database only."""

    pytestmark = pytest.mark.django_db(databases=["default"])

    def test_ids_of_the_default_backend_need_one_database(self) -> None:
        live, ended = TaskFactory.create(), failed()
        assert jobqueue.cancel(live.pk) == CancelReport(cancelled=1)
        assert jobqueue.requeue([ended.pk, ended.pk]) == RequeueReport(requeued=1)


class TestTwoDatabases:
    pytestmark = BOTH

    def test_ids_are_found_in_all_backends(self) -> None:
        here, there = TaskFactory.create(), TaskFactory.create(backend="sqlite", using="sqlite")
        assert jobqueue.cancel([here.pk, there.pk, new_id()]) == CancelReport(cancelled=2, skipped=1)
        assert jobqueue.requeue([there.pk, new_id(), here.pk]) == RequeueReport(requeued=2, skipped=1)

    def test_named_backend_is_the_only_one_searched(self) -> None:
        there = TaskFactory.create(backend="sqlite", using="sqlite")
        with CaptureQueriesContext(connections["default"]) as queries:
            assert jobqueue.cancel(there.pk, backend="sqlite").cancelled == 1
        assert not queries.captured_queries
        assert jobqueue.cancel(there.pk, backend="default") == CancelReport(skipped=1)

    def test_a_tree_of_another_backend_is_cancelled_once(self) -> None:
        parent = TaskFactory.create(backend="sqlite", using="sqlite")
        TaskFactory.create(backend="sqlite", using="sqlite", parent_id=parent.pk)
        assert jobqueue.cancel(parent.pk, tree=True) == CancelReport(cancelled=2)


ACTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Task], str]] = {
    "cancel": (jobqueue.cancel, TaskFactory.create, "CANCELLED"),
    "requeue": (jobqueue.requeue, failed, "READY"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("do", "make", "status"), ACTIONS.values(), ids=ACTIONS)
class TestLockedRow:
    def test_locked_task_is_reported_after_a_second(
        self, do: Callable[..., Any], make: Callable[..., Task], status: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks, "LOCK_WAIT_SECONDS", 0.05)
        locked, free = make(), make()

        with session() as stranger:
            stranger.lock(locked.pk)
            report = do([locked.pk, free.pk, new_id()], backend="default")

        assert (report.busy, report.skipped) == ({locked.pk}, 1)
        assert Task.objects.get(pk=free.pk).status == status
        assert Task.objects.get(pk=locked.pk).status != status
        assert do(report.busy, backend="default").busy == frozenset()
        assert Task.objects.get(pk=locked.pk).status == status

    def test_locked_task_is_changed_when_the_lock_ends(
        self, do: Callable[..., Any], make: Callable[..., Task], status: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks, "LOCK_WAIT_SECONDS", DEADLINE_SECONDS)
        task = make()

        with session() as stranger:
            stranger.lock(task.pk)
            # Released between the first look and the second.
            monkeypatch.setattr("jobqueue.api.tasks.time.sleep", lambda seconds: stranger.rollback())
            report = do(task.pk, backend="default")

        assert report.busy == frozenset()
        assert Task.objects.get(pk=task.pk).status == status


@pytest.mark.django_db(transaction=True)
def test_tree_with_locked_parent_counts_children_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = TaskFactory.create()
    TaskFactory.create(parent_id=parent.pk, status=Status.RUNNING)

    with session() as stranger:
        stranger.lock(parent.pk)
        monkeypatch.setattr("jobqueue.api.tasks.time.sleep", lambda seconds: stranger.rollback())
        report = jobqueue.cancel(parent.pk, tree=True, backend="default")

    assert report == CancelReport(cancelled=1, requested=1)


@pytest.mark.parametrize("change", [jobqueue.cancel, jobqueue.requeue, api.wake])
@pytest.mark.parametrize("ids", [7, None, object()])
def test_invalid_ids_are_refused(change: Callable[[Any], Any], ids: Any) -> None:
    with pytest.raises(TypeError, match=r"as in TaskResult\.id"):
        change(ids)


@pytest.mark.django_db(databases=["default"])
@pytest.mark.parametrize(
    ("name", "more"),
    [("", {}), ("q" * 129, {}), ("a\0b", {}), (7, {}), ("emails", {"reason": "r" * 256}), ("emails", {"by": "b\0"})],
)
def test_values_too_long_for_a_queue_are_refused(name: Any, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a text of (1 to|at most) \d+ characters"):
        api.pause(name, **more)
    assert not Queue.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_async_twins_do_the_same() -> None:
    doomed, asleep = TaskFactory.create(), TaskFactory.create(status=Status.SUSPENDED)

    async def play() -> None:
        assert await jobqueue.acancel(doomed.pk, tree=True) == CancelReport(cancelled=1)
        assert await jobqueue.arequeue([doomed.pk]) == RequeueReport(requeued=1)
        assert await api.awake(asleep.pk) == 1
        await api.apause("mail", by="ada")
        await api.alimit_queue("mail", 3)

    async_to_sync(play)()
    assert {*Task.objects.values_list("status", flat=True)} == {Status.READY}
    queue = Queue.objects.get(name="mail")
    assert (queue.paused_by, queue.max_running) == ("ada", 3)
    async_to_sync(api.aresume)("mail")
    assert Queue.objects.get(name="mail").paused_at is None


def test_report_repr_omits_defaults() -> None:
    text = repr(CancelReport(cancelled=1))
    assert text.startswith("CancelReport(cancelled=1, requested=0, skipped=0, ")
    assert "parents" not in text


@BOTH
def test_other_changes_find_tasks_in_all_backends(django_capture_on_commit_callbacks: Any) -> None:
    here = TaskFactory.create(scheduled=True, wake_at="2100-01-01T00:00:00Z")
    there = failed(backend="sqlite", using="sqlite")

    with django_capture_on_commit_callbacks(execute=True):
        assert api.run_now([here.pk, there.pk]) == ChangeReport(changed=1, skipped=1)
    assert api.discard(there.pk, backend="sqlite") == ChangeReport(changed=1)
    assert api.delete([there.pk, new_id()]) == ChangeReport(changed=1, skipped=1)

    assert Task.objects.get().status == "READY"
    assert not Task.objects.using("sqlite").exists()

"""Notifications and wake-ups after a commit only save time. Their errors do not reach the caller."""

from __future__ import annotations

import logging
import tracemalloc
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.db.models import F

from jobqueue import Debounce, send
from jobqueue.api import notifications
from jobqueue.api.notifications import notifier
from jobqueue.models import InboxMessage, Task
from tests.actor.programs import Sleeper
from tests.factories import TaskFactory
from tests.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lose_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(notifier, "send", fail)


@pytest.mark.usefixtures("lose_notifications")
@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_lost_connection_after_the_commit_is_no_error(
    caplog: pytest.LogCaptureFixture, is_in_transaction: bool
) -> None:
    """After an error, the caller would repeat a change that is committed."""
    with caplog.at_level(logging.ERROR, "django.db"):
        if is_in_transaction:
            with transaction.atomic():
                add.enqueue(1)
                receiver = Sleeper.enqueue()
                send(receiver.id, "hello")
        else:
            add.enqueue(1)
            receiver = Sleeper.enqueue()
            send(receiver.id, "hello")

    assert (Task.objects.count(), InboxMessage.objects.count()) == (2, 1)
    assert "server closed the connection" in caplog.text


def test_notifier_forgets_queues_that_callers_invent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "MAX_QUEUES", 10)
    monkeypatch.setattr(notifications, "MIN_INTERVAL_SECONDS", 0.0)
    engine: Any = SimpleNamespace(alias="default", queues=SimpleNamespace(notify=lambda queues: None))
    own = notifications.Notifier()
    tracemalloc.start()
    try:
        for number in range(5000):
            own.send(engine, [f"invented-{number}"])
        size, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size < 100_000  # 5,000 names take a megabyte


class TestReplacedTask:
    """Executors hear of a task that a later call has changed, as of a new one."""

    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        queues: list[str] = []
        monkeypatch.setattr(notifier, "send", lambda _engine, names: queues.extend(names))
        return queues

    @pytest.mark.parametrize(
        ("first", "second", "queue"),
        [
            ({"run_after": timedelta(hours=1)}, {}, "default"),
            ({"run_after": timedelta(hours=1)}, {"run_after": timedelta(0)}, "default"),
            ({}, {"queue_name": "other"}, "other"),
            ({}, {"priority": 50}, "default"),
            ({"run_after": timedelta(hours=1)}, {"queue_name": "other"}, "other"),
        ],
        ids=["ready", "earlier", "queue", "priority", "ready-in-another-queue"],
    )
    def test_replaced_task_is_announced(
        self, sent: list[str], first: dict[str, Any], second: dict[str, Any], queue: str
    ) -> None:
        replaced = add.using(key="k", **first).enqueue(1)
        sent.clear()

        two = add.using(key="k", on_conflict="replace", **second).enqueue(2)

        assert two.id == replaced.id
        assert Task.objects.get(pk=replaced.id).status == "READY"
        assert sent == [queue]

    def test_debounced_task_that_has_waited_long_enough_is_announced(self, sent: list[str]) -> None:
        debounced = add.using(key="k", debounce=Debounce(30, max_wait=60))
        replaced = debounced.enqueue(1)
        Task.objects.update(enqueued_at=F("enqueued_at") - timedelta(seconds=60))

        assert debounced.enqueue(2).id == replaced.id
        assert sent == ["default"]

    def test_running_task_whose_key_is_taken_over_leads_to_an_announcement(self, sent: list[str]) -> None:
        TaskFactory.create(running=True, key="k")

        add.using(key="k", on_conflict="replace").enqueue(2)

        assert sent == ["default"]

    def test_task_that_stays_as_it_is_is_not_announced(self, sent: list[str]) -> None:
        add.using(key="k").enqueue(1)
        sent.clear()

        add.using(key="k").enqueue(2)

        assert sent == []

    def test_replaced_task_that_is_due_later_is_not_announced(self, sent: list[str]) -> None:
        add.using(key="k").enqueue(1)
        sent.clear()

        add.using(key="k", on_conflict="replace", run_after=timedelta(hours=1)).enqueue(2)

        assert sent == []

"""Notifications and wake-ups after a commit only save time. Their errors do not reach the caller."""

from __future__ import annotations

import logging
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, transaction

from jobqueue import send
from jobqueue.api import notifications
from jobqueue.api.notifications import notifier
from jobqueue.models import InboxMessage, Task
from tests.actor.programs import Sleeper
from tests.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def lose_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(notifier, "send", fail)


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
    engine: Any = SimpleNamespace(alias="default", notify=lambda queues: None)
    own = notifications.Notifier()
    tracemalloc.start()
    try:
        for number in range(5000):
            own.send(engine, [f"invented-{number}"])
        size, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size < 100_000  # 5,000 names take a megabyte

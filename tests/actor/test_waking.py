"""A notification wakes a suspended actor at once beside many others."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from django.db import connection

from jobqueue import send
from jobqueue.models import Executor, Task
from tests.actor.programs import Sleeper
from tests.actor.test_acceptance import PATIENCE_SECONDS, Launch, launch
from tests.executor.harness import wait_for

__all__ = ["launch"]

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])

ACTORS = 100_000
SENDS = 50
FILL = """
    INSERT INTO jobqueue_task (
        id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, inner_state, status,
        claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at
    )
    SELECT gen_random_uuid(), 'default', 'default', %s, 0, now(), '[]', '{}', '{}', '{}', '{"waits": []}', 'SUSPENDED',
        1, '[]', 0, 4, 1, 0, '[]', now()
    FROM generate_series(1, %s)
"""


def test_notification_wakes_each_of_many_suspended_actors(launch: Launch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, [Sleeper.task.task_type, ACTORS])
    launch("--threads", "4", POLL_INTERVAL=3600.0)  # only a notification can wake an actor in time
    wait_for(lambda: Executor.objects.exists(), "the executor", PATIENCE_SECONDS)
    chosen = list(Task.objects.values_list("pk", flat=True)[:SENDS])
    for pk in chosen:  # one at a time, so that each message needs its own notification
        send(pk)
        wait_for(lambda pk=pk: waits_of([pk]), "the poll", PATIENCE_SECONDS)  # type: ignore[misc]

    assert [len(one) for one in waits_of(chosen)] == [1] * SENDS
    assert Task.objects.filter(polls=1).count() == ACTORS - SENDS


def waits_of(ids: Sequence[UUID]) -> list[list[float]]:
    """Return the recorded waits. The sweep may cause one more poll without messages."""
    states = Task.objects.filter(pk__in=ids, polls__gt=1).values_list("inner_state", flat=True)
    return [state["waits"] for state in states if state and state["waits"]]

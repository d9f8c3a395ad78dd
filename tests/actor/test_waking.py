"""A message wakes a suspended actor at once, by a notice, however many others sleep."""

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

SLEEPERS = 100_000
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


def test_each_of_many_sleepers_wakes_by_the_notice_of_its_message(launch: Launch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, [Sleeper.task.task_type, SLEEPERS])
    launch("--threads", "4", POLL_INTERVAL=3600.0)  # only a notice brings a poll within our patience
    wait_for(lambda: Executor.objects.exists(), "the executor", PATIENCE_SECONDS)
    chosen = list(Task.objects.values_list("pk", flat=True)[:SENDS])
    for pk in chosen:  # one after the other: the notice of one message cannot make up for that of another
        send(pk)
        wait_for(lambda pk=pk: waits_of([pk]), "the poll", PATIENCE_SECONDS)  # type: ignore[misc]

    assert [len(one) for one in waits_of(chosen)] == [1] * SENDS
    assert Task.objects.filter(polls=1).count() == SLEEPERS - SENDS


def waits_of(ids: Sequence[UUID]) -> list[list[float]]:
    """Give the waits of those that have noted any; the sweep may meet a sender and cause one more poll without mail."""
    states = Task.objects.filter(pk__in=ids, polls__gt=1).values_list("inner_state", flat=True)
    return [state["waits"] for state in states if state and state["waits"]]

"""A message wakes a suspended actor at once, by a notice, however many others sleep."""

from __future__ import annotations

import statistics
import time

import pytest
from django.db import connection

from jobqueue import send
from jobqueue.models import Executor, Task
from jobqueue.outcome import Status
from tests.actor.programs import Sleeper
from tests.actor.test_acceptance import PATIENCE_SECONDS, Launch, launch
from tests.executor.harness import wait_for

__all__ = ["launch"]

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])

SLEEPERS = 100_000
SENDS = 200
GAP_SECONDS = 0.01
FILL = """
    INSERT INTO jobqueue_task (
        id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, inner_state, status,
        claim_number, worker_ids, attempts, max_attempts, polls, lost_count, errors, enqueued_at
    )
    SELECT gen_random_uuid(), 'default', 'default', %s, 0, now(), '[]', '{}', '{}', '{}', '{"waits": []}', 'SUSPENDED',
        1, '[]', 0, 4, 1, 0, '[]', now()
    FROM generate_series(1, %s)
"""


def test_each_of_many_sleepers_wakes_by_the_notice_of_its_message(launch: Launch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, [Sleeper.task.task_type, SLEEPERS])
    # So long that a lost notice shows: the median would be half of it.
    launch("--threads", "4", POLL_INTERVAL=60.0)
    wait_for(lambda: Executor.objects.exists(), "the executor", PATIENCE_SECONDS)
    chosen = list(Task.objects.values_list("pk", flat=True)[:SENDS])
    first = chosen[0]
    send(first)  # when this one was polled, the executor listens
    wait_for(lambda: Task.objects.filter(pk=first, polls=2, status=Status.SUSPENDED).exists(), "the first", 90.0)

    for pk in chosen[1:]:
        send(pk)
        time.sleep(GAP_SECONDS)  # the pace of the senders, nothing is awaited by it
    woken = Task.objects.filter(pk__in=chosen, polls=2, status=Status.SUSPENDED)
    wait_for(lambda: woken.count() == SENDS, "all polls", PATIENCE_SECONDS)

    waits = [wait for row in woken.exclude(pk=first) for wait in (row.inner_state or {})["waits"]]
    assert len(waits) == SENDS - 1
    assert Task.objects.filter(polls=1).count() == SLEEPERS - SENDS
    print(f"median {statistics.median(waits) * 1000:.1f} ms, most {max(waits) * 1000:.0f} ms")  # noqa: T201
    assert statistics.median(waits) < 1.0

"""The task that the load test submits."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from jobqueue import Backoff, task
from jobqueue.conf.compat import TaskContext
from tools.load.models import Effect

MAX_ATTEMPTS = 4


class Unlucky(Exception):
    """Half of all attempts fail with this error."""


@task(
    name="load.flip",
    allow_http=True,
    atomic=True,
    takes_context=True,
    max_attempts=MAX_ATTEMPTS,
    backoff=Backoff(base=0.1, cap=1.0, jitter=0.5),
)
def flip(context: TaskContext[..., Any], number: int) -> int:
    """Write a row, then fail half of the time. A failure rolls the row back."""
    Effect.objects.create(task_id=UUID(context.task_result.id))
    if random.random() < 0.5:
        raise Unlucky(f"number {number}")
    return number

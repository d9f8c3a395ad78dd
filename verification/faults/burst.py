"""All kinds of tasks for real executors, and checks of their results."""

from __future__ import annotations

from collections import Counter

from jobqueue.models import InboxMessage, Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, tiny, work_later
from tests.actors import Fibonacci
from tests.models import Effect

EACH = 100
SERVED = 3


def run_burst(fleet: Fleet, url: str) -> list[str]:
    """Run functions, atomic and async bodies and a family of actors on three executors. Return their output."""
    tiny.enqueue_many([((number,), {}) for number in range(5 * EACH)])
    book.enqueue_many([((), {})] * EACH)
    work_later.enqueue_many([((), {})] * EACH)
    number = Fibonacci.enqueue(9)
    executors = [
        fleet.start("--threads", "4", environment={"DATABASE_URL": url}, poll_interval=0.2) for _ in range(SERVED)
    ]
    assert wait_for_end(seconds=180) == {"SUCCESSFUL": 7 * EACH + 67}
    assert [executor.stop() for executor in executors] == [0] * SERVED
    assert Task.objects.get(pk=number.id).return_value == 34
    booked = Effect.objects.filter(kind="booked").values_list("task_id", flat=True)
    assert Counter(Counter(booked).values()) == {1: EACH}
    assert not Task.objects.filter(executor_losses__gt=0).exists()
    assert not InboxMessage.objects.filter(consumed_at=None).exists()
    return ["\n".join(executor.output.lines) for executor in executors]

"""A child that a body forks ends with the body. It never becomes a second executor."""

from __future__ import annotations

from collections import Counter

import pytest

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, is_running, wait_for_end
from tests.acceptance.tasks import (
    fork_after_the_commit,
    fork_child,
    fork_child_later,
    fork_in_threads,
    work,
    work_later,
)
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

CODES = {"returns": 0, "exits": 3, "raises": 1, "awaits": 0}


def test_forked_child_ends_with_the_body(fleet: Fleet) -> None:
    """Other tasks wait in the queue: a child that continued would run them."""
    for body in (fork_child, fork_child_later):
        for way in CODES:
            body.enqueue_many([((way,), {})] * 3)
    fork_after_the_commit.enqueue_many([((), {})] * 3)
    fork_in_threads.enqueue_many([((), {})] * 3)
    process = fleet.start("--threads", "2", "--async-slots", "4")
    work.enqueue_many([((0.01,), {})] * 60)
    work_later.enqueue_many([((0.01,), {})] * 60)

    assert wait_for_end() == {"SUCCESSFUL": 24 + 6 + 120}

    codes = Counter((task.args[0], task.return_value) for task in Task.objects.filter(task_type__contains="fork_child"))
    assert codes == dict.fromkeys(CODES.items(), 6)
    runs = Counter(Effect.objects.filter(kind="started").values_list("task_id", flat=True))
    assert (len(runs), {*runs.values()}) == (120, {1})
    assert {*Effect.objects.values_list("pid", flat=True)} == {process.pid}
    wait_until(lambda: not any(is_running(pid) for pid in process.children()), "the end of all children")
    assert process.stop() == 0

"""Variables that look like ours."""

from __future__ import annotations

import pytest

from jobqueue.executor.environment import unread_variables

FLAGS = {"JOBQUEUE_THREADS", "JOBQUEUE_QUEUE", "JOBQUEUE_SHUTDOWN_TIMEOUT"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("JOBQUEUE_THREADS JOBQUEUE_FAILPOINTS JOBQUEUE_PG_BIN PATH THREADS", ""),
        ("JOBQUEUE_THREAD", "JOBQUEUE_THREAD (did you mean JOBQUEUE_THREADS?)."),
        ("JOBQUEUE_QUEUES JOBQUEUE_DSN", "JOBQUEUE_DSN, JOBQUEUE_QUEUES (did you mean JOBQUEUE_QUEUE?)."),
        ("JOBQUEUE_SHUTDOWN_TIMEOUT_SECONDS", "(did you mean JOBQUEUE_SHUTDOWN_TIMEOUT?)."),
    ],
)
def test_variables_that_nobody_reads_are_named_with_the_nearest_flag(given: str, said: str) -> None:
    line = unread_variables(given.split(), FLAGS)

    assert line.endswith(said)
    assert bool(line) == bool(said)
    assert line.startswith("The environment has what run_executors does not read: ") or not said

"""Environment variables that are almost flags."""

from __future__ import annotations

import pytest

from jobqueue.management.commands.run_executors import misspelt_variables

FLAGS = {"JOBQUEUE_THREADS", "JOBQUEUE_QUEUE", "JOBQUEUE_SHUTDOWN_TIMEOUT"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("JOBQUEUE_THREADS JOBQUEUE_FAILPOINTS JOBQUEUE_DSN PATH THREAD", ""),
        ("JOBQUEUE_THREAD", "JOBQUEUE_THREAD (did you mean JOBQUEUE_THREADS?)."),
        ("JOBQUEUE_QUEUES JOBQUEUE_THREAD", "_QUEUE?), JOBQUEUE_THREAD (did you mean JOBQUEUE_THREADS?)."),
        ("JOBQUEUE_SHUTDOWN_TIMEOUT_SECONDS", "(did you mean JOBQUEUE_SHUTDOWN_TIMEOUT?)."),
    ],
)
def test_misspelt_variables_are_named_with_the_flag(given: str, said: str) -> None:
    line = misspelt_variables(given.split(), FLAGS)

    assert line.endswith(said)
    assert bool(line) == bool(said)
    assert line.startswith("The environment has what run_executors does not read: ") or not said

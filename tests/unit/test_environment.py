"""Warnings about misspelt environment variables."""

from __future__ import annotations

import pytest

from jobqueue.management.commands.run_executors import misspelt_variables

FLAGS = {"JOBQUEUE_THREADS", "JOBQUEUE_QUEUE", "JOBQUEUE_SHUTDOWN_TIMEOUT"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("JOBQUEUE_THREADS JOBQUEUE_FAILPOINTS JOBQUEUE_DSN PATH THREAD", ""),
        ("JOBQUEUE_THREAD", "JOBQUEUE_THREAD (did you mean JOBQUEUE_THREADS?)."),
        ("JOBQUEUE_QUEUES JOBQUEUE_THREAD", "_QUEUE?), JOBQUEUE_THREAD (did you mean JOBQUEUE_THREADS?)."),
        ("JOBQUEUE_SHUTDOWN_TIMEOUT_SECONDS", "(did you mean JOBQUEUE_SHUTDOWN_TIMEOUT?)."),
    ],
)
def test_misspelt_variables_are_named_with_the_flag(names: str, message: str) -> None:
    line = misspelt_variables(names.split(), FLAGS)

    assert line.endswith(message)
    assert bool(line) == bool(message)
    assert line.startswith("run_executors ignores variables of the environment: ") or not message

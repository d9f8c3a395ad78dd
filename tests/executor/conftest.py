import time
from collections.abc import Iterator
from typing import Any

import pytest

from jobqueue.compat import task_finished
from tests.executor.harness import Burst, Options, Running, Start, gates


@pytest.fixture
def start() -> Iterator[Start]:
    """Start executors, which are stopped when the test is over."""
    started: list[Running] = []

    def start(**settings: Any) -> Running:
        running = Running(**{"threads": 2, "shutdown_timeout": 10.0} | settings)
        started.append(running)
        return running.start()

    yield start
    gates.open_all()
    for running in started:
        running.process.stop()
    for running in started:
        running.join()
    gates.clear()


@pytest.fixture
def burst(start: Start) -> Burst:
    """Run an executor until nothing is left to do."""

    def burst(**settings: Any) -> Running:
        running = start(burst=True, **settings)
        running.join()
        return running

    return burst


@pytest.fixture
def options(settings: Any) -> Options:
    """Change OPTIONS of the backends."""

    def options(**changes: Any) -> None:
        settings.TASKS = {
            alias: {**backend, "OPTIONS": {**backend["OPTIONS"], **changes}}
            for alias, backend in settings.TASKS.items()
        }

    return options


@pytest.fixture
def slow_receiver() -> Iterator[list[Any]]:
    """Every task_finished takes a moment; gives the results."""
    told = []

    def receiver(task_result: Any, **_: Any) -> None:
        time.sleep(0.1)
        told.append(task_result)

    task_finished.connect(receiver)
    yield told
    task_finished.disconnect(receiver)

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobqueue.conf.compat import task_finished
from tests.executor.harness import Burst, Running, Start, connected, gates


@pytest.fixture
def no_collection() -> Iterator[None]:
    """
    Keep the garbage collector from calling Python in the thread of a body.

    Python drops an exception that arrives in such a call. The watchdog interrupts the body again after ten seconds.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start executors, which are stopped when the test is over."""
    started: list[Running] = []
    left: list[int] = []
    # An executor that cannot go on ends its process, which is that of the tests.
    monkeypatch.setattr("jobqueue.executor.process.exit_now", left.append)

    def start(*, prepare: Callable[[Running], None] = lambda _: None, **settings: Any) -> Running:
        running = Running(**{"threads": 2, "shutdown_timeout": 10.0} | settings)
        started.append(running)
        prepare(running)
        return running.start()

    yield start
    gates.open_all()
    for running in started:
        running.process.stop()
    for running in started:
        running.join()
    gates.clear()
    assert not left


@pytest.fixture
def burst(start: Start) -> Burst:
    """Run an executor until nothing is left to do."""

    def burst(**settings: Any) -> Running:
        running = start(burst=True, **settings)
        running.join()
        return running

    return burst


@pytest.fixture
def slow_receiver() -> Iterator[list[Any]]:
    """Delay each task_finished. Return the results."""
    results: list[Any] = []

    def receiver(task_result: Any, **_: Any) -> None:
        time.sleep(0.1)
        results.append(task_result)

    with connected(receiver, task_finished):
        yield results


@pytest.fixture
def announced() -> Iterator[list[Any]]:
    """Return the results of all task_finished signals."""
    results: list[Any] = []

    def receiver(task_result: Any, **_: Any) -> None:
        results.append(task_result)

    with connected(receiver, task_finished):
        yield results

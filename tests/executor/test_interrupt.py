"""Interrupt a running body: between any two byte codes, and never after its end."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobqueue import Backoff
from jobqueue.declarations.options import RunOptions
from jobqueue.exceptions import ShuttingDown, TaskCancelled, TaskTimeout
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.running import attempt as attempts
from jobqueue.executor.running.attempt import (
    Attempt,
    Raised,
    Returned,
    RunningTask,
    run_interruptibly,
    stop_thread,
)
from tests.executor import tasks
from tests.executor.harness import make_running
from tests.waiting import DEADLINE_SECONDS, wait_until


def run(running: RunningTask, body: Callable[[], Any]) -> Returned | Raised:
    attempt = Attempt(
        running=running,
        connections=TaskConnections(),
        task=tasks.add,
        args=[],
        kwargs={},
        run_options=RunOptions(max_attempts=1, backoff=Backoff(), timeout=None),
    )
    return run_interruptibly(attempt, body)


def spin(until: Callable[[], bool] = lambda: False) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not until():
        if time.monotonic() > deadline:
            return "not interrupted"
    return "done"


class Interrupter(threading.Thread):
    """Does something as soon as a body runs."""

    def __init__(self, running: RunningTask, tell: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._running, self._tell = running, tell
        self.start()

    def run(self) -> None:
        while not self._running.is_armed:
            time.sleep(0)
        self._tell()


def test_busy_body_is_interrupted_although_it_suppresses_exceptions() -> None:
    running = make_running()
    Interrupter(running, lambda: running.interrupt(TaskTimeout))

    def body() -> str:
        while True:
            try:
                return spin()
            except Exception:  # noqa: BLE001 - as people write it
                continue

    ending = run(running, body)

    assert isinstance(ending, Raised)
    assert isinstance(ending.error, TaskTimeout)
    assert not running.is_armed


def test_interruption_before_the_start_prevents_the_start() -> None:
    running = make_running()
    assert not running.interrupt(TaskCancelled)

    ending = run(running, lambda: pytest.fail("started"))

    assert isinstance(ending, Raised)
    assert isinstance(ending.error, TaskCancelled)


def test_the_first_reason_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "INTERRUPT_GAP_SECONDS", 0.0)
    running = make_running()
    Interrupter(running, lambda: (running.interrupt(TaskTimeout), running.interrupt(ShuttingDown)))

    ending = run(running, spin)

    assert running.reason is TaskTimeout
    assert isinstance(ending, Raised)
    assert isinstance(ending.error, TaskTimeout)


def test_body_that_swallowed_an_interruption_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "INTERRUPT_GAP_SECONDS", 0.0)
    running = make_running()
    swallowed = threading.Event()

    def tell_twice() -> None:
        running.interrupt(TaskTimeout)
        swallowed.wait(DEADLINE_SECONDS)
        running.interrupt(TaskTimeout)

    def body() -> None:
        try:
            spin()
        except BaseException:  # noqa: BLE001 - as people write it
            swallowed.set()
        spin()

    Interrupter(running, tell_twice)
    assert isinstance(run(running, body), Raised)


def test_second_interruption_at_once_is_not_raised() -> None:
    running = make_running()
    reasons: list[Any] = []

    def stop(reason: Any) -> bool:
        reasons.append(reason)
        return True

    running.arm(stop)

    assert running.interrupt(TaskTimeout)
    assert running.interrupt(ShuttingDown)

    assert reasons == [TaskTimeout]


def test_interrupted_body_may_return() -> None:
    running = make_running()
    Interrupter(running, lambda: running.interrupt(TaskCancelled))

    def body() -> str:
        try:
            return spin()
        except TaskCancelled:
            return "saved what there was"

    assert run(running, body) == Returned("saved what there was")


def test_a_failed_body_is_not_kept_alive_by_its_own_exception() -> None:
    class Large:
        pass

    def body() -> None:
        large.append(Large())
        local = large[-1]
        raise ValueError(local)

    large: list[Large] = []
    ending = run(make_running(), body)

    assert isinstance(ending, Raised)
    frames = []
    frame = ending.error.__traceback__
    while frame is not None:
        frames.append(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    assert frames == ["body"]


def test_an_interruption_right_behind_the_end_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the worst moment disarm() waits for the lock of interrupt()."""
    is_over, ours = threading.Event(), threading.get_ident()

    def stop_late(*arguments: Any) -> None:
        assert is_over.wait(DEADLINE_SECONDS)
        wait_until(lambda: sys._current_frames()[ours].f_code.co_name == "disarm")
        time.sleep(0.05)  # by now it waits for the lock
        stop_thread(*arguments)

    monkeypatch.setattr(attempts, "stop_thread", stop_late)
    running = make_running()
    teller = Interrupter(running, lambda: running.interrupt(TaskTimeout))

    def body() -> int:
        while running.reason is None:
            time.sleep(0)
        is_over.set()
        return 7

    assert run(running, body) == Returned(7)
    assert sum(range(1000)) == 499_500  # byte codes between which a late interruption would arrive
    teller.join(DEADLINE_SECONDS)
    others = threading.Thread(target=running.interrupt, args=(TaskCancelled,), daemon=True)
    others.start()
    others.join(DEADLINE_SECONDS)
    assert not others.is_alive()  # the lock is free


def test_no_interruption_arrives_once_a_body_is_over() -> None:
    """Interrupt thousands of bodies around their end. A late interruption would fail the test."""
    interruptions: list[BaseException] = []
    endings: list[tuple[RunningTask, Returned | Raised]] = []
    current: list[RunningTask | None] = [None]
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.is_set():
            running = current[0]
            dawdle()
            if running is not None:
                running.interrupt(TaskTimeout)

    def work() -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(endings) < 2500 and time.monotonic() < deadline:
            running = current[0] = make_running()
            try:
                endings.append((running, run(running, dawdle)))
                dawdle()
            except BaseException as interruption:  # noqa: BLE001 - this is what must not be
                interruptions.append(interruption)
        is_over.set()

    threads = [threading.Thread(target=target, daemon=True) for target in (tell, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_SECONDS)

    assert interruptions == []
    kinds = {(running.interrupted_at is not None, type(ending)) for running, ending in endings}
    assert kinds >= {(True, Raised), (False, Returned)}
    assert all(not running.is_armed for running, _ in endings)


def dawdle() -> None:
    """Hand the interpreter over a few times."""
    for _ in range(random.randrange(10)):
        time.sleep(0)

"""A test marked `alone` runs while no other test runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.alone import room_for

LIMIT_SECONDS = 120.0
ENOUGH_SECONDS = 0.3  # enough for a test that nothing blocks


class Process(threading.Thread):
    """A process of the test suite with one test."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        super().__init__(daemon=True)
        config = SimpleNamespace(workerinput={}, getoption=lambda name: str(folder / "process"))
        self._item: Any = SimpleNamespace(config=config, get_closest_marker=lambda name: alone or None)
        self.is_in, self.may_leave = threading.Event(), threading.Event()

    def run(self) -> None:
        with room_for(self._item):
            self.is_in.set()
            self.may_leave.wait(LIMIT_SECONDS)

    def is_let_in(self) -> bool:
        return self.is_in.wait(LIMIT_SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[bool], Process]]:
    with ExitStack() as ends:

        def start(alone: bool) -> Process:
            process = Process(tmp_path, alone=alone)
            process.start()
            ends.callback(process.join, LIMIT_SECONDS)
            ends.callback(process.may_leave.set)
            return process

        yield start


def wait_until_held(gate: Path) -> None:
    """Return when a test waits to run alone."""
    until = time.monotonic() + LIMIT_SECONDS
    with gate.open("w") as probe:
        while time.monotonic() < until:
            try:
                flock(probe, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return
            flock(probe, LOCK_UN)
    raise AssertionError("No test waits to run alone.")


def test_ordinary_tests_run_in_parallel(start: Callable[[bool], Process]) -> None:
    assert all(process.is_let_in() for process in [start(False), start(False)])


def test_alone_test_excludes_other_tests(start: Callable[[bool], Process], tmp_path: Path) -> None:
    first = start(False)
    assert first.is_let_in()
    alone = start(True)
    wait_until_held(tmp_path / "gate")
    later = start(False)
    first.may_leave.set()

    assert alone.is_let_in()
    assert not later.is_in.wait(ENOUGH_SECONDS)
    alone.may_leave.set()
    assert later.is_let_in()

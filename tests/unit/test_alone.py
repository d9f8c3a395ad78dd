"""A test marked `alone` runs while no other test runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.alone import room_for
from tests.waiting import DEADLINE_SECONDS

MOMENT_SECONDS = 0.3  # enough for a test that nothing blocks

Start = Callable[[bool], tuple[threading.Event, threading.Event]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a test, as a process of the suite does. Return when it runs, and what ends it."""
    with ExitStack() as ends:

        def start(is_alone: bool) -> tuple[threading.Event, threading.Event]:
            config = SimpleNamespace(workerinput={}, getoption=lambda name: str(tmp_path / "process"))
            item: Any = SimpleNamespace(config=config, get_closest_marker=lambda name: is_alone or None)
            is_running, may_end = threading.Event(), threading.Event()

            def run() -> None:
                with room_for(item):
                    is_running.set()
                    may_end.wait(DEADLINE_SECONDS)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            ends.callback(thread.join, DEADLINE_SECONDS)
            ends.callback(may_end.set)
            return is_running, may_end

        yield start


def test_alone_test_excludes_other_tests(start: Start) -> None:
    first, may_end = start(False)
    second, second_may_end = start(False)
    assert first.wait(DEADLINE_SECONDS)
    assert second.wait(DEADLINE_SECONDS)

    alone, alone_may_end = start(True)
    assert not alone.wait(MOMENT_SECONDS)
    may_end.set()
    second_may_end.set()
    assert alone.wait(DEADLINE_SECONDS)

    later, _ = start(False)
    assert not later.wait(MOMENT_SECONDS)
    alone_may_end.set()
    assert later.wait(DEADLINE_SECONDS)


def test_waiting_alone_test_lets_no_other_start(start: Start) -> None:
    first, may_end = start(False)
    assert first.wait(DEADLINE_SECONDS)
    alone, alone_may_end = start(True)
    assert not alone.wait(MOMENT_SECONDS)  # it holds the gate now
    later, _ = start(False)
    assert not later.wait(MOMENT_SECONDS)

    may_end.set()
    assert alone.wait(DEADLINE_SECONDS)
    assert not later.is_set()
    alone_may_end.set()
    assert later.wait(DEADLINE_SECONDS)

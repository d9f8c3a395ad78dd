"""The threads of async bodies: so many at once, the others in line, a few kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobqueue.executor import spare
from jobqueue.executor.spare import OwnThread, SpareThreads
from tests.executor.harness import wait_for

MOST = 3
PATIENCE_SECONDS = 120.0


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpareThreads]:
    monkeypatch.setattr(spare, "MOST_AT_WORK", MOST)
    monkeypatch.setattr(spare, "MOST_AT_REST", 2)
    made = SpareThreads("test-spare")
    yield made
    made.close()


def test_who_comes_when_all_are_at_work_waits_until_one_leaves(threads: SpareThreads) -> None:
    gate = threading.Event()
    first = [OwnThread(threads) for _ in range(MOST)]
    held = [own.submit(gate.wait, PATIENCE_SECONDS) for own in first]
    last = OwnThread(threads)
    calls = [last.submit(str, number) for number in range(3)]
    assert last.is_taken
    assert not any(call.done() for call in calls)

    gate.set()
    assert all(one.result(PATIENCE_SECONDS) for one in held)
    assert not any(call.done() for call in calls)  # their bodies may call again
    first[0].close()

    assert [call.result(PATIENCE_SECONDS) for call in calls] == ["0", "1", "2"]
    for own in (*first[1:], last):
        own.close()


def test_a_call_that_was_cancelled_in_line_is_not_made_and_costs_no_place(threads: SpareThreads) -> None:
    gate, made = threading.Event(), threading.Event()
    first = [OwnThread(threads) for _ in range(MOST)]
    for own in first:
        own.submit(gate.wait, PATIENCE_SECONDS)
    gone = OwnThread(threads)
    assert gone.submit(made.set).cancel()
    gone.close()  # its body was cancelled

    gate.set()
    for own in first:
        own.close()

    for _ in range(2):  # each of the places is free again
        others = [OwnThread(threads) for _ in range(MOST)]
        together = threading.Barrier(MOST, timeout=PATIENCE_SECONDS)
        met = [own.submit(together.wait) for own in others]
        assert sorted(one.result(PATIENCE_SECONDS) for one in met) == list(range(MOST))
        for own in others:
            own.close()
    assert not made.is_set()


def test_what_a_call_raises_is_its_callers(threads: SpareThreads) -> None:
    own = OwnThread(threads)

    with pytest.raises(ZeroDivisionError):
        own.submit(divmod, 1, 0).result(PATIENCE_SECONDS)
    own.close()


def test_where_no_thread_is_to_be_had_the_caller_hears_it(
    threads: SpareThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", refuse)
        for _ in range(2 * MOST):  # and loses no place by it
            own = OwnThread(threads)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                own.submit(str).result(PATIENCE_SECONDS)
            own.close()
    assert OwnThread(threads).submit(str, 1).result(PATIENCE_SECONDS) == "1"


def test_when_the_last_call_of_a_body_is_known_to_have_ended_its_thread_is_at_rest(threads: SpareThreads) -> None:
    gate = threading.Event()
    own = OwnThread(threads)
    call = own.submit(gate.wait, PATIENCE_SECONDS)
    own.close()
    rested: list[int] = []
    call.add_done_callback(lambda _: rested.append(len(threads._idle)))

    gate.set()

    wait_for(lambda: rested)
    assert rested == [1]


def test_few_threads_are_kept(threads: SpareThreads) -> None:
    bodies = [OwnThread(threads) for _ in range(MOST)]
    together = threading.Barrier(MOST, timeout=PATIENCE_SECONDS)
    for one in [own.submit(together.wait) for own in bodies]:
        one.result(PATIENCE_SECONDS)
    for own in bodies:
        own.close()

    wait_for(lambda: sum(thread.name.startswith("test-spare") for thread in threading.enumerate()) == 2)
    assert threads.taken == MOST

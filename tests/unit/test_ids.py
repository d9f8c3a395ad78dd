"""Identifiers of tasks."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest

from jobqueue.values import ids
from jobqueue.values.ids import BLOCK, new_id


def test_id_is_uuid7_of_current_time() -> None:
    before = time.time_ns() // 1_000_000
    pk = new_id()
    after = time.time_ns() // 1_000_000

    assert (pk.version, pk.variant) == (7, RFC_4122)
    assert before <= pk.int >> 80 <= after


def test_ids_are_in_order_while_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last_ns", 0)
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_999_999_990)

    made = [new_id() for _ in range(1000)]

    assert made == sorted(set(made))


def test_ids_of_several_threads_are_unique() -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: [new_id() for _ in range(2 * BLOCK)], range(8)))

    assert len({pk for ids in made for pk in ids}) == 8 * 2 * BLOCK


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_process_does_not_repeat_random_part(monkeypatch: pytest.MonkeyPatch) -> None:
    new_id()  # fills the block of random numbers
    expected = ids._random[-1]
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, new_id().bytes)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        pk = UUID(bytes=answer.read())

    assert pk.int & (2**54 - 1) != expected >> 10

"""The processes of a pool end with the block that started them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NoReturn

import pytest

from tests.waiting import wait_until
from verification.interleavings.process import pool_of

MAX_SECONDS = 600.0


def wait_until_interrupted(path: Path) -> None:
    try:
        path.touch()  # from now on the test may send SIGTERM
        time.sleep(MAX_SECONDS)
    finally:
        path.unlink()


class SlowResult:
    """A result that a process sends for a long time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> NoReturn:
        wait_until_interrupted(self.path)
        raise AssertionError


def test_process_that_sends_its_result_ends_on_sigterm(process_environment: dict[str, str], tmp_path: Path) -> None:
    """It sent SystemExit as its result instead, for ever where the pool read no more, and the tests hung."""
    marker = tmp_path / "marker"

    with pool_of(process_environment, 1) as pool:
        future = pool.submit(SlowResult, marker)
        wait_until(marker.exists, "the process to send its result")
        (process,) = pool.processes
        process.terminate()

        assert isinstance(future.exception(60), BrokenProcessPool)


def test_pool_left_by_exception_ends_its_processes_cleanly(process_environment: dict[str, str], tmp_path: Path) -> None:
    """Those of another pool, such as the one that runs the races, go on."""
    marker, futures = tmp_path / "marker", list[Future[None]]()

    def leave_pool_by_exception() -> None:
        with pool_of(process_environment, 1) as pool:
            futures.extend(pool.submit(wait_until_interrupted, marker) for _ in range(4))
            wait_until(marker.exists, "the first to run")
            raise SystemExit

    with pool_of(process_environment, 1) as other:
        assert other.submit(str, 1).result() == "1"
        with pytest.raises(SystemExit):
            leave_pool_by_exception()
        assert other.submit(str, 2).result() == "2"

    assert not marker.exists()
    assert {type(future.exception()) for future in futures} == {BrokenProcessPool}

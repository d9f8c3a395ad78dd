"""Processes that work on races and plays: they end with whoever has begun them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tests.executor.harness import wait_for
from verification.interleavings.process import pool_of

STAY_SECONDS = 600.0


def stay(path: Path) -> None:
    try:
        path.touch()  # once it is there, SIGTERM may come at any moment
        time.sleep(STAY_SECONDS)
    finally:
        path.unlink()


def test_a_block_that_is_left_ends_what_runs_and_lets_it_clean_up(
    process_environment: dict[str, str], tmp_path: Path
) -> None:
    begun, futures = tmp_path / "begun", list[Future[None]]()

    def be_interrupted() -> None:
        with pool_of(process_environment, 1) as pool:
            futures.extend(pool.submit(stay, begun) for _ in range(4))
            wait_for(begun.exists, "the first to run")
            raise SystemExit

    with pytest.raises(SystemExit):
        be_interrupted()

    assert not begun.exists()
    assert {type(future.exception()) for future in futures} == {BrokenProcessPool}

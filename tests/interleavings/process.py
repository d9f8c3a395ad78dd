"""A few processes at once, each with what it begins with: nothing here imports models, which needs a Django set up."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from jobqueue.engine.base import Engine
    from tests.interleavings.orders import Explored, Plan


@contextmanager
def pool_of(environment: Mapping[str, str], processes: int = 0) -> Iterator[ProcessPoolExecutor]:
    """Processes on the database of this environment. An order keeps one processor busy, here or on the server."""
    with ProcessPoolExecutor(
        max_workers=processes or min(4, 2 * (os.cpu_count() or 1)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=set_up,
        initargs=(dict(environment),),
    ) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


def set_up(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    django.setup()
    gc.freeze()
    gc.set_threshold(50_000)  # collecting what Django has loaded took an eighth of the time


def run(scenario: str, kind: type[Engine], plan: Plan) -> Explored:
    from tests.interleavings import runner

    return runner.run(scenario, kind, plan)


def estimate(scenario: str, kind: type[Engine], descents: int) -> tuple[float, float]:
    from tests.interleavings import runner

    return runner.estimate_kinds(scenario, kind, descents)

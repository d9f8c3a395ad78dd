"""Run functions in a pool of processes that set up Django first. This module imports no models."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

import django

if TYPE_CHECKING:
    from jobqueue.engine.engine import Engine
    from verification.interleavings.orders import Explored, OrderPlan

P = ParamSpec("P")
T = TypeVar("T")


class TerminablePool(ProcessPoolExecutor):
    """A pool of processes that end on SIGTERM. A process that runs a function cleans up first."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(work, partial(fn, *args, **kwargs))

    @property
    def processes(self) -> list[BaseProcess]:
        """Its own processes. Other pools of this process have others."""
        return [*(self._processes or {}).values()]


def work(call: Callable[[], T]) -> T:
    try:
        with leaving_on_sigterm():
            return call()
    except SystemExit as error:
        os._exit(int(str(error.code)))  # the pool would treat SystemExit as a result and continue


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """
    Clean up before SIGTERM ends the process.

    Afterwards SIGTERM ends it at once again: it may be sending its result to a pool that reads no more. An exception
    there would make it send once more, and the pool waits for its end.
    """
    default = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, default)


@contextmanager
def pool_of(environment: Mapping[str, str], processes: int = 0) -> Iterator[TerminablePool]:
    """
    Yield a process pool on the database of this environment. Each order keeps one processor busy, here or on the
    server.

    An exception in the block ends the processes during their work, and the programs that they have started.
    """
    with TerminablePool(
        max_workers=processes or min(4, 2 * (os.cpu_count() or 1)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=set_up,
        initargs=(dict(environment),),
    ) as pool:
        try:
            yield pool
        except BaseException:
            for process in pool.processes:
                process.terminate()
            raise
        pool.shutdown(cancel_futures=True)


def set_up(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    django.setup()
    gc.freeze()
    gc.set_threshold(50_000)  # collecting Django's own objects took an eighth of the time


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process cleanly on a signal. Ignore further signals during the cleanup."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def run(scenario: str, kind: type[Engine], plan: OrderPlan) -> Explored:
    from verification.interleavings import runner

    return runner.run(scenario, kind, plan)


def estimate(scenario: str, kind: type[Engine], descents: int) -> tuple[float, float]:
    from verification.interleavings import runner

    return runner.estimate_kinds(scenario, kind, descents)

"""Who does the work: worker threads and the event loop, with a line in front of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from jobqueue import registry
from jobqueue.engine.engine import Engine
from jobqueue.executor import sessions
from jobqueue.executor.aio import Loop
from jobqueue.executor.hold import Hold
from jobqueue.executor.lane import LoopLane, ThreadLane
from jobqueue.executor.run import Ended, Loaded, Worker
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.standard_streams import fill_standard_streams
from jobqueue.executor.telemetry import events
from jobqueue.executor.threads import Threads, broken_off, poll_in_thread, run_safely
from jobqueue.executor.watchdog import LOOK_SECONDS
from jobqueue.records import Status


class Crew:
    """
    Runs claimed tasks, each in the lane of its kind.

    on_ended: gets what became of each, from any thread. on_deadline: a body with a short timeout has started.
    on_failure: called if a thread ends unexpectedly. It ends the process.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ExecutorSettings,
        worker: Worker,
        on_ended: Callable[[Ended], None],
        on_deadline: Callable[[], None],
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self._engine, self._worker = engine, worker
        self._on_ended, self._on_deadline = on_ended, on_deadline
        self.in_threads = ThreadLane(settings.threads)
        self._threads = Threads(self.in_threads, self._poll_in_thread, "jobqueue", on_failure)
        self._loop = Loop("jobqueue", on_failure)
        self.on_loop = LoopLane(settings.async_slots, self._start_on_loop)
        self._coroutines: frozenset[str] = frozenset()
        self._generation: object = None

    @property
    def threads_taken(self) -> int:
        """How many async bodies have called something that blocks: each had a thread, and its database connections."""
        return self._loop.threads.taken

    def stalled(self) -> Iterator[str]:
        """Name the threads that have ended unexpectedly. The process should be restarted."""
        for name in [*self._threads.ended, *self._loop.ended]:
            yield f"The thread {name} has ended."

    def blocked(self, limit_seconds: float) -> Iterator[str]:
        """Name what the site's code has blocked for longer than the limit."""
        if (seconds := self._loop.silent_seconds()) > limit_seconds:
            yield f"The event loop has not moved for {seconds:.0f} s: an async task blocks it."
        if (seconds := self._threads.chore_seconds) > limit_seconds:
            yield f"A receiver of task signals has been running for {seconds:.0f} s."

    @property
    def coroutines(self) -> frozenset[str]:
        """Name the registered tasks that run on the event loop."""
        generation = registry.generation()
        if generation is not self._generation:
            found = {name for name, task in registry.all().items() if inspect.iscoroutinefunction(task.func)}
            self._coroutines, self._generation = frozenset(found), generation
        return self._coroutines

    def begin(self, holds: Iterable[Hold], room_in_threads: int, room_on_loop: int) -> list[Hold]:
        """Start them, best first, or put them in line; gives back those that are too many for their lane."""
        coroutines = self.coroutines
        for_threads: list[Hold] = []
        for_loop: list[Hold] = []
        for hold in holds:
            (for_loop if hold.claimed.task_type in coroutines else for_threads).append(hold)
        if for_threads:
            self.in_threads.add(for_threads[:room_in_threads])
        if for_loop:
            self.on_loop.add(for_loop[:room_on_loop])
        return for_threads[room_in_threads:] + for_loop[room_on_loop:]

    def take_back(self, waited_seconds: float) -> list[Hold]:
        """Take those out of the lines that have waited so long."""
        return self.in_threads.take_back(waited_seconds) + self.on_loop.take_back(waited_seconds)

    def _poll_in_thread(self, hold: Hold) -> None:
        try:
            over = poll_in_thread(hold, self._engine, self._worker, self._on_start)
        except BaseException as error:  # noqa: BLE001 - not the body's error. The task must not stay RUNNING.
            over = broken_off(hold, error, self._worker)
        fill_standard_streams()
        # First the slot: the transaction that commits the task then claims another, in place of one more for that.
        self.in_threads.leave(hold)
        self._on_ended(over)

    def _start_on_loop(self, hold: Hold) -> None:
        self._loop.submit(hold, self._engine, self._worker, self._on_start, self._finish_on_loop)

    def _finish_on_loop(self, over: Ended) -> None:
        fill_standard_streams()
        self.on_loop.left(over.hold)
        self._on_ended(over)

    def _on_start(self, hold: Hold, loaded: Loaded) -> None:
        """Tell that an attempt starts, then begin to count its time; receivers leave nothing behind either."""
        events.report_start(hold, loaded, self._worker)
        sessions.tidy()  # a connection may have died since the last body
        timeout = loaded.limits.timeout
        hold.start(timeout)
        if timeout is not None and timeout < LOOK_SECONDS:  # else the watchdog looks in time by itself
            self._on_deadline()

    def announce(self, news: Sequence[tuple[Ended, Status]], then: Callable[[], None]) -> None:
        """Tell the log and the receivers of signals what was committed, in one of our threads."""

        def tell() -> None:
            try:
                for over, status in news:
                    run_safely(partial(events.report_end, over, status, self._worker))
                    sessions.current().tidy()
            finally:
                then()

        self._threads.submit_chore(tell)

    def cut_connections(self) -> None:
        """Take the database away from bodies that are still running in threads."""
        self._threads.cut_connections()

    def close(self, timeout_seconds: float) -> bool:
        """Stop threads and loop; returns whether all have ended."""
        ended = self._threads.close(timeout_seconds)
        return self._loop.close(timeout_seconds) and ended

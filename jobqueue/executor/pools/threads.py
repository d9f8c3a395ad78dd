"""The pool of worker threads, and how a plain function runs in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.pools.base import Pool, PoolContext, release_aborted
from jobqueue.executor.process_guard import fill_standard_streams
from jobqueue.executor.running.atomic import end_attempt, poll_atomically
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, RunningTask, run_interruptibly, running_here
from jobqueue.executor.running.task_runner import poll, prepare


class ThreadPool(Pool):
    """Worker threads. Each takes its next task itself."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        super().__init__(slots, context)
        self._connections: list[TaskConnections] = []
        self._is_closed = False
        for number in range(slots):
            self._start_thread(f"jobqueue-worker-{number}")

    def _work(self) -> None:
        connections = TaskConnections()
        connections.enter()
        self._connections.append(connections)
        task = self._wait_and_take()
        while task is not None:
            completed = task.variables.run(self._run, task, connections)
            # The slot comes first: the transaction that commits this task then claims another one for it.
            task = self._take_after(task)
            self._context.on_completed(completed)
            if task is None:
                task = self._wait_and_take()
        connections.leave()

    def _wait_and_take(self) -> RunningTask | None:
        """Wait for a task and give it a slot. Return None when the pool is closed and no task waits."""
        with self._lock:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._changed.wait()
            return self._take()

    def _run(self, task: RunningTask, connections: TaskConnections) -> CompletedAttempt:
        running_here.set(task)
        try:
            completed = poll_in_thread(task, connections, self._context.on_start)
        except BaseException as error:  # noqa: BLE001 - not the body's error. The task must not stay RUNNING.
            completed = release_aborted(task, error)
        running_here.set(None)  # the variables belong to the task: only the garbage collector would free such a circle
        fill_standard_streams()
        return completed

    def cut_connections(self) -> None:
        for connections in list(self._connections):
            connections.cut()

    def close(self, timeout_seconds: float) -> bool:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return self._join(timeout_seconds)


def poll_in_thread(
    running: RunningTask, connections: TaskConnections, on_start: Callable[[Attempt], None]
) -> CompletedAttempt:
    """Run one claimed task to its outcome, on connections without open transactions."""
    attempt = prepare(running, connections)
    if isinstance(attempt, CompletedAttempt):
        return attempt
    on_start(attempt)
    try:
        if attempt.task.atomic:
            return poll_atomically(attempt)
        return end_attempt(attempt, run_interruptibly(attempt, partial(poll, attempt)))
    finally:
        if running.reason is not None:
            connections.close()
        connections.reset()

"""The flags of `run_executors`, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """The settings of one executor process."""

    backend: str = "default"  # the alias in TASKS
    queues: tuple[str, ...] | None = None  # None serves every queue of the backend
    queue_limits: Mapping[str, int] = field(default_factory=dict)  # how many tasks of a queue this process runs at once
    threads: int = 8  # worker threads
    async_slots: int = 100  # async tasks that it runs at once
    burst: bool = False  # stop when no work is left
    max_tasks: int | None = None  # stop after so many; None for no limit
    max_memory: int | None = None  # MiB of resident memory above which it stops; None for no limit
    shutdown_timeout: float = 25.0  # seconds that running tasks get at a stop
    connect_timeout: float = 60.0  # seconds to wait for the database at the start
    poll_interval: float | None = None  # seconds between two claims when idle; None for the backend's POLL_INTERVAL
    name: str | None = None  # for people; None: the host name and the process id

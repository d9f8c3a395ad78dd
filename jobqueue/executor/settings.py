"""The flags of `run_executors`, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """
    What one executor process was asked to do.

    queues: None serves every queue of the backend. queue_limits: how many tasks of a queue this process runs at once.
    max_tasks: stop after so many, None for no limit. shutdown_timeout: seconds that running tasks get at a stop.
    connect_timeout: seconds to wait for the database at the start. poll_interval: seconds between two claims of an
    idle executor, None for the backend's POLL_INTERVAL.
    """

    backend: str = "default"
    queues: tuple[str, ...] | None = None
    queue_limits: Mapping[str, int] = field(default_factory=dict)
    threads: int = 8
    async_slots: int = 100
    burst: bool = False
    max_tasks: int | None = None
    shutdown_timeout: float = 25.0
    connect_timeout: float = 60.0
    poll_interval: float | None = None
    name: str | None = None

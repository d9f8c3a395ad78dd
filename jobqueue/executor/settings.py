"""What one executor process was asked to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """
    The flags of `run_executors`, as a value.

    queues: None serves every queue of the backend. queue_limits: how many tasks of some of them this process runs
    at once. shutdown_timeout, connect_timeout, poll_interval:
    seconds; a poll_interval of None is the backend's POLL_INTERVAL. max_tasks: stop after so many,
    None never. connect_timeout: how long to wait for the database at the start.
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

"""The filter of a command that works on many tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jobqueue.records import Status


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Empty: all tasks. tasks: full names, or their last components."""

    statuses: tuple[Status, ...] = ()
    queues: Collection[str] = ()
    tasks: Collection[str] = ()

    def matches(self, queue_name: str, task_type: str) -> bool:
        is_task = not self.tasks or task_type in self.tasks or task_type.rpartition(".")[2] in self.tasks
        return is_task and (not self.queues or queue_name in self.queues)

    @property
    def is_narrow(self) -> bool:
        """Whether it excludes tasks of the statuses."""
        return bool(self.queues or self.tasks)

    def __bool__(self) -> bool:
        return bool(self.statuses) or self.is_narrow

    def __str__(self) -> str:
        names = {"status": self.statuses, "task": self.tasks, "queue": self.queues}
        return ", ".join(f"{name} {' or '.join(values)}" for name, values in names.items() if values)

"""Which tasks a command is about, when they are not named by their ids."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jobqueue.records import Status


@dataclass(frozen=True, slots=True)
class Choice:
    """Empty: all of them. task: a whole name, or what stands behind its last dot."""

    statuses: tuple[Status, ...] = ()
    queues: Collection[str] = ()
    tasks: Collection[str] = ()

    def wants(self, queue_name: str, task_type: str) -> bool:
        is_task = not self.tasks or task_type in self.tasks or task_type.rpartition(".")[2] in self.tasks
        return is_task and (not self.queues or queue_name in self.queues)

    @property
    def is_narrow(self) -> bool:
        """Whether it leaves out tasks of the statuses."""
        return bool(self.queues or self.tasks)

    def __bool__(self) -> bool:
        return bool(self.statuses) or self.is_narrow

    def __str__(self) -> str:
        parts = [
            " or ".join(self.statuses),
            "tasks",
            f"of {' or '.join(self.tasks)}" if self.tasks else "",
            f"in {' or '.join(self.queues)}" if self.queues else "",
        ]
        return " ".join(filter(None, parts))

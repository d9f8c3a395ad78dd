"""Helpers for tests of workflows: a workflow with a function of the test as body, and steps that count their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import jobqueue
from jobqueue import Backoff, WorkflowContext, workflow
from jobqueue.models import JournalEntry
from tests.actor.stage import Stage

Body = Callable[[WorkflowContext], Any]

bodies: dict[str, Body] = {}


@workflow(max_attempts=3, backoff=Backoff(base=10.0, jitter=0.0), name="tests.script")
def script(context: WorkflowContext, body: str) -> Any:
    """Run a function of the test, found in `bodies` by name."""
    return bodies[body](context)


class WorkflowStage(Stage):
    """Run workflows of one database in a test, and read what they stored."""

    def start(self, body: Body, **using: Any) -> UUID:
        """Enqueue a workflow with this function as body."""
        return UUID(script.using(**using).enqueue(self.name(body)).id)

    def name(self, body: Body) -> str:
        """Return the name of a body, which `script` takes."""
        name = f"body-{len(bodies)}"
        bodies[name] = body
        return name

    def play(self, body: Body, **using: Any) -> UUID:
        """Enqueue a workflow and run it until it waits or has ended."""
        pk = self.start(body, **using)
        self.run()
        return pk

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and run what is due."""
        self.advance(seconds)
        self.run()

    def send_and_run(self, pk: UUID | str, body: Any) -> None:
        jobqueue.send(pk, body)
        self.run()

    def journal(self, pk: UUID) -> dict[str, str]:
        """Return the status of each entry by its name, in order."""
        rows = JournalEntry.objects.using(self.database).filter(task_id=pk).order_by("pk")
        return dict(rows.values_list("name", "status"))

    def entry(self, pk: UUID, name: str) -> JournalEntry:
        return JournalEntry.objects.using(self.database).get(task_id=pk, name=name)


class Counting:
    """A step that counts its calls, and fails while errors are left."""

    def __init__(self, name: str, result: Any = None, errors: int = 0) -> None:
        self.__name__, self.result, self.errors, self.calls = name, result, errors, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.errors:
            self.errors -= 1
            raise ValueError(f"{self.__name__} is broken")
        return args[0] if self.result is None and args else self.result

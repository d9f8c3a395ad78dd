"""Actors whose polls are written in the test, and short words for what every test does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import jobqueue
from jobqueue import Actor, Backoff, PollContext, Spawn, testing
from jobqueue.models import InboxMessage, Task
from jobqueue.records import Status
from jobqueue.testing import Polled

Part = Callable[[PollContext[Any]], Any]

parts: dict[str, Any] = {}
BACKOFF = Backoff(base=10.0, factor=2.0, jitter=0.0)


class Puppet(Actor, max_attempts=3, backoff=BACKOFF):
    """Polls as the part says."""

    def poll(self, context: PollContext[Any], part: str) -> Any:
        return parts[part](context)


class AsyncPuppet(Actor, max_attempts=3, backoff=BACKOFF):
    """Polls as the part says, on the event loop."""

    async def poll(self, context: PollContext[Any], part: str) -> Any:
        return await parts[part](context)


class Stage:
    def __init__(self, database: str) -> None:
        self.database = database

    # --- in

    def part(self, poll: Part) -> str:
        name = f"part-{len(parts)}"
        parts[name] = poll
        return name

    def enter(self, poll: Part, *, actor: type[Actor[Any]] = Puppet, **using: Any) -> UUID:
        """Enqueue an actor that polls so."""
        return UUID(actor.using(**using).enqueue(self.part(poll)).id)

    def child(self, poll: Part, **using: Any) -> Spawn:
        return Spawn(Puppet.using(**using), self.part(poll))

    # --- on

    def run(self, **options: Any) -> list[Polled]:
        return testing.run_until_idle(**options)

    def advance(self, seconds: float) -> None:
        testing.advance(timedelta(seconds=seconds))

    def send(self, pk: UUID, body: Any = None, **options: Any) -> int | None:
        return jobqueue.send(pk, body, **options)

    def change(self, pk: UUID, **columns: Any) -> None:
        """Write into a row what only another version of the code could have written."""
        assert Task.objects.using(self.database).filter(pk=pk).update(**columns) == 1

    # --- look

    def row(self, pk: UUID) -> Task:
        return Task.objects.using(self.database).get(pk=pk)

    def status(self, pk: UUID) -> Status:
        return Status(self.row(pk).status)

    def result(self, pk: UUID) -> Any:
        """What a task that ended well gave."""
        row = self.row(pk)
        assert row.status == Status.SUCCESSFUL, (row.status, row.errors)
        return row.return_value

    def error(self, pk: UUID) -> str:
        """Class and message of the last failed try."""
        last = self.row(pk).errors[-1]
        return f"{last['exception_class_path'].rpartition('.')[2]}: {last['message']}"

    def unread(self, pk: UUID) -> list[Any]:
        """Bodies of the unread messages."""
        mail = InboxMessage.objects.using(self.database).filter(task_id=pk, consumed_at__isnull=True)
        return [message.body for message in mail.order_by("id")]

    def children(self, pk: UUID) -> list[Task]:
        return list(Task.objects.using(self.database).filter(parent_id=pk).order_by("id"))

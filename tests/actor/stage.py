"""Helpers for tests of actors: actors with a function of the test as poll."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import jobqueue
from jobqueue import Actor, Backoff, PollContext, Spawn, testing
from jobqueue.models import InboxMessage, Task
from jobqueue.testing import Polled
from jobqueue.values.states import Status

Part = Callable[[PollContext[Any]], Any]

parts: dict[str, Any] = {}
BACKOFF = Backoff(base=10.0, factor=2.0, jitter=0.0)


class Puppet(Actor, max_attempts=3, backoff=BACKOFF):
    """An actor with a function of the test as poll, found in `parts` by name."""

    def poll(self, context: PollContext[Any], part: str) -> Any:
        return parts[part](context)


class AsyncPuppet(Actor, max_attempts=3, backoff=BACKOFF):
    """A Puppet that polls on the event loop. Its function may be async or not."""

    async def poll(self, context: PollContext[Any], part: str) -> Any:
        returned = parts[part](context)
        return await returned if inspect.isawaitable(returned) else returned


class Stage:
    """Run actors of one database in a test, and read what they stored."""

    def __init__(self, database: str) -> None:
        self.database = database

    # --- enqueue

    def part(self, poll: Part) -> str:
        name = f"part-{len(parts)}"
        parts[name] = poll
        return name

    def enter(self, poll: Part, *, actor: type[Actor[Any]] = Puppet, **using: Any) -> UUID:
        """Enqueue an actor with this function as poll."""
        return UUID(actor.using(**using).enqueue(self.part(poll)).id)

    def child(self, poll: Part, **using: Any) -> Spawn:
        return Spawn(Puppet.using(**using), self.part(poll))

    # --- run and send

    def run(self, **options: Any) -> list[Polled]:
        return testing.run_until_idle(**options)

    def advance(self, seconds: float) -> None:
        testing.advance(timedelta(seconds=seconds))

    def send(self, pk: UUID, body: Any = None, **options: Any) -> int | None:
        return jobqueue.send(pk, body, **options)

    def change(self, pk: UUID, **columns: Any) -> None:
        """Write values into a row that only another version of the code would write."""
        assert Task.objects.using(self.database).filter(pk=pk).update(**columns) == 1

    # --- read

    def row(self, pk: UUID) -> Task:
        return Task.objects.using(self.database).get(pk=pk)

    def status(self, pk: UUID) -> Status:
        return Status(self.row(pk).status)

    def result(self, pk: UUID) -> Any:
        """Return the result of a successful task."""
        row = self.row(pk)
        assert row.status == Status.SUCCESSFUL, (row.status, row.errors)
        return row.return_value

    def error(self, pk: UUID) -> str:
        """Return class and message of the last failed attempt."""
        last = self.row(pk).errors[-1]
        return f"{last['exception_class_path'].rpartition('.')[2]}: {last['message']}"

    def unread(self, pk: UUID) -> list[Any]:
        """Return the bodies of the unread messages."""
        messages = InboxMessage.objects.using(self.database).filter(task_id=pk, consumed_at__isnull=True)
        return [message.body for message in messages.order_by("id")]

    def children(self, pk: UUID) -> list[Task]:
        return list(Task.objects.using(self.database).filter(parent_id=pk).order_by("id"))

"""Who takes part: executors, and transactions that somebody leaves open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.connection import statement
from jobqueue.records import ClaimedTask, ExecutorInfo, Outcome


@dataclass(eq=False, slots=True)
class Member:
    """
    An executor. hands: what it has claimed and not polled yet. pending: what it has yet to commit.

    beat_at: its last beat, on the clock of the play. is_frozen: it does nothing, and may come back.
    is_dead: for ever. is_steady: it has beaten all the time since it began, or since it was let go on.
    """

    name: str
    beat_at: float
    id: UUID = field(default_factory=uuid4)
    hands: list[ClaimedTask] = field(default_factory=list)
    pending: list[Outcome] = field(default_factory=list)
    is_frozen: bool = False
    is_dead: bool = False
    is_steady: bool = True

    @property
    def sign(self) -> ExecutorInfo:
        return ExecutorInfo(executor_id=self.id, name=self.name, host="", pid=1, versions={}, queues=[], slots=4)


class Session:
    """
    A connection, and the engine on it. It calls itself as its actor on the server, where changes are recorded.

    An open transaction stays open until somebody ends it. locks: whether it has more than share locks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.owner: Member | None = None
        self.text = ""
        self.locks = False
        self.on_commit: Callable[[], None] = lambda: None
        self.on_rollback: Callable[[], None] = lambda: None
        self.before_commit: Callable[[], bool] = lambda: True
        self._name = ""
        self._open: ExitStack | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    @property
    def _raw(self) -> Any:
        connection = connections[self.engine.database]
        connection.ensure_connection()
        return connection.connection

    def prepare(self) -> None:
        """What waits here waits for ourselves: for a transaction that this very thread has left open."""
        self._raw.execute("SET lock_timeout = '100ms'")
        self._raw.execute(statement("generic_plans"))  # planning each statement anew would take a third of a play
        self._raw.prepare_threshold = 0
        self._name = ""

    def call_itself(self, name: str) -> None:
        if name != self._name:
            self._raw.execute("SELECT set_config('application_name', %s, FALSE)", [name])
            self._name = name

    def open(self, name: str, text: str, *, locks: bool, owner: Member | None = None) -> None:
        self.call_itself(name)
        self.text, self.locks, self.owner = text, locks, owner
        self.before_commit = lambda: True
        self.on_commit = self.on_rollback = lambda: None
        self._open = ExitStack()
        self._open.enter_context(transaction.atomic(using=self.engine.database))

    def commit(self) -> bool:
        """End it well, unless what it does at last says no."""
        if not self.before_commit():
            self.roll_back()
            return False
        self._close()
        self.on_commit()
        return True

    def roll_back(self) -> None:
        transaction.set_rollback(True, using=self.engine.database)
        self._close()
        self.on_rollback()

    def _close(self) -> None:
        assert self._open is not None
        stack, self._open, self.owner = self._open, None, None
        stack.close()

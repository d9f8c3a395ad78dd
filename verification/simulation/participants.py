"""The participants of a simulation: executors, and connections with open transactions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.connection import statement
from jobqueue.values.records import ClaimedTask, ExecutorInfo, Outcome


@dataclass(eq=False, slots=True)
class SimulatedExecutor:
    """
    An executor. claimed: claimed tasks without a poll yet. uncommitted: outcomes to commit.

    last_heartbeat: on the simulation's clock. is_frozen: does nothing, and may continue later. is_dead: never
    continues. is_steady: has sent every heartbeat since it started or was last thawed.
    """

    name: str
    last_heartbeat: float
    id: UUID = field(default_factory=uuid4)
    claimed: list[ClaimedTask] = field(default_factory=list)
    uncommitted: list[Outcome] = field(default_factory=list)
    is_frozen: bool = False
    is_dead: bool = False
    is_steady: bool = True

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(executor_id=self.id, name=self.name, host="", pid=1, versions={}, queues=[], slots=4)


class SimulatedConnection:
    """
    A connection and the engine that uses it. Its application_name is the current actor, for the record of changes.

    An open transaction stays open until a later move ends it. locks: whether it holds more than share locks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.owner: SimulatedExecutor | None = None
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
        """Set a short lock timeout. A statement can only wait for a transaction that this thread has left open."""
        self._raw.execute("SET lock_timeout = '100ms'")
        self._raw.execute(statement("generic_plans"))  # planning each statement again would take a third of the time
        self._raw.prepare_threshold = 0
        self._name = ""

    def set_application_name(self, name: str) -> None:
        if name != self._name:
            self._raw.execute("SELECT set_config('application_name', %s, FALSE)", [name])
            self._name = name

    def open(self, name: str, text: str, *, locks: bool, owner: SimulatedExecutor | None = None) -> None:
        self.set_application_name(name)
        self.text, self.locks, self.owner = text, locks, owner
        self.before_commit = lambda: True
        self.on_commit = self.on_rollback = lambda: None
        self._open = ExitStack()
        self._open.enter_context(transaction.atomic(using=self.engine.database))

    def commit(self) -> bool:
        """Commit, unless before_commit returns False."""
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

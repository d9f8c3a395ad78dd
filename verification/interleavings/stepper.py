"""
Run the statements of several connections one at a time, in a chosen order.

Each client is a thread with its own connection. It stops before every statement and before every COMMIT or ROLLBACK.
A step resumes one client and ends when the statement has ended or waits for a lock of another client. A waiting
client continues as soon as it gets the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from importlib.resources import files
from queue import Empty, Queue, SimpleQueue
from typing import Any

from django.db import connections

from jobqueue.engine.postgres.connection import statement

DEADLINE_SECONDS = 120.0
# Time before asking the server whether a statement waits. It doubles each time, to keep a busy machine free.
FIRST_CHECK_SECONDS, LONGEST_CHECK_SECONDS = 0.001, 0.032
LONGEST_SILENCE_SECONDS = 1.0  # the same, of the only client with locks
LABELS = "ABC"
MAX_STEPS = 500  # of one order: an order with more makes no progress
# They read no rows and lock none, so they commute with all other steps under READ COMMITTED.
NOT_STEPPED = ("SAVEPOINT", "RELEASE", "lock_timeout", "SELECT CLOCK_TIMESTAMP()")
BLOCKED_SESSIONS = "SELECT pid FROM unnest(%s::int[]) AS pid WHERE pg_blocking_pids(pid) && %s::int[]"
AUTOCOMMIT = "alone: "  # before a statement that is a transaction of its own
LOCKED = "locked: "  # before a statement of a transaction that has locked its tasks

ENDS = ("COMMIT", "ROLLBACK", AUTOCOMMIT)  # steps after which others see what a transaction wrote

CLOCK, TIME_PASSES = "clock", "time passes"  # steps of a race whose clock moves

Script = Callable[[], object]
Choose = Callable[[Sequence["Client"]], "Client"]
Check = Callable[[], list[str]]


class ClientState(Enum):
    """
    State of a client. RUNNING: resumed, and not stopped again.

    AFTER_COMMIT: stopped until another client ends a transaction. LAST: stopped until no other client can run.
    """

    STOPPED = auto()
    AFTER_COMMIT = auto()
    LAST = auto()
    RUNNING = auto()
    ENDED = auto()


class Client:
    """A thread with its own connection. `pid` identifies its session on the server."""

    def __init__(self, number: int, reports: Queue[tuple[Client, ClientState]]) -> None:
        self.number = number
        self.label = LABELS[number]
        self.state = ClientState.ENDED
        self.before = ""  # the next step
        self.runs_freely = False  # runs to its end without a stop
        self.may_hold_locks = False  # its transaction has begun
        self._has_locked = False
        self.error: Exception | None = None
        self.pid = 0
        self._reports = reports
        self._scripts: SimpleQueue[Script | None] = SimpleQueue()
        self._go = threading.Lock()  # released for a moment to resume the client
        self._go.acquire()
        self._thread = threading.Thread(target=self._live, name=f"client-{self.label}", daemon=True)
        self._thread.start()

    # --- from outside

    def begin(self, script: Script) -> None:
        self.error, self.runs_freely, self.state = None, False, ClientState.RUNNING
        self._scripts.put(script)

    def go(self) -> None:
        self.state = ClientState.RUNNING
        self._go.release()

    def close(self) -> None:
        self._scripts.put(None)
        self._thread.join(DEADLINE_SECONDS)

    # --- inside its thread

    def _live(self) -> None:
        connection = connections["default"]
        connection.ensure_connection()
        self.pid = connection.connection.info.backend_pid
        # As on an executor's own connection. Planning each statement again took a third of an order.
        connection.connection.execute(statement("generic_plans"))
        connection.connection.prepare_threshold = 0
        self._stop_before_ends(connection)
        self._reports.put((self, ClientState.ENDED))
        try:
            with connection.execute_wrapper(self._stop_before_statement):
                while (script := self._scripts.get()) is not None:
                    _here.client = self
                    self._perform(script)
        finally:
            connection.close()

    def _perform(self, script: Script) -> None:
        try:
            script()
        except Exception as error:  # noqa: BLE001 every error of a script is a finding
            self.error = error
        self._reports.put((self, ClientState.ENDED))

    def _stop_before_ends(self, connection: Any) -> None:
        for name in ("_commit", "_rollback"):
            setattr(connection, name, self._stopping(name[1:].upper(), getattr(connection, name)))

    def _stopping(self, words: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def stop_and_call() -> Any:
            self.stop(words)
            self._has_locked = False
            answer = call()
            self.may_hold_locks = False
            return answer

        return stop_and_call

    def _stop_before_statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        words = name_of(sql)
        if not words.startswith(NOT_STEPPED):
            is_alone = not context["connection"].in_atomic_block
            self.stop((AUTOCOMMIT if is_alone else LOCKED if self._has_locked else "") + words)
            self._has_locked |= words == "lock_tasks" or " FOR NO KEY UPDATE" in words or " FOR UPDATE" in words
            self.may_hold_locks |= not is_alone
        return execute(sql, params, many, context)

    def stop(self, words: str, state: ClientState = ClientState.STOPPED) -> None:
        if not self.runs_freely:
            self.before = words
            self._reports.put((self, state))
            self._go.acquire()


class _Here(threading.local):
    client: Client | None = None


_here = _Here()


def rest(state: ClientState) -> None:
    """Stop the calling client until others have run. Do nothing outside of a client."""
    if _here.client is not None:
        _here.client.stop("go on", state)


def step(words: str) -> None:
    """Stop the calling client before a step that is no statement. Do nothing outside of a client."""
    if _here.client is not None:
        _here.client.stop(words)


@cache
def named_statements() -> dict[str, str]:
    names = [path.name.removesuffix(".sql") for path in (files("jobqueue.engine.postgres") / "sql").iterdir()]
    return {statement(name): name for name in names}


@cache
def name_of(sql: str) -> str:
    """Name a statement by its SQL file, or by its first and last words."""
    if sql in named_statements():
        return named_statements()[sql]
    words = " ".join(sql.replace('"', "").replace("jobqueue_", "").split())
    return words if len(words) <= 90 else f"{words[:30]} ... {words[-55:]}"


@dataclass
class Order:
    """
    One order that ran. took_seconds: duration of each step, which shows whether a slow order waited or the machine
    was busy. waited: steps that waited for a lock of another client.
    """

    steps: list[tuple[str, str]] = field(default_factory=list)  # a client's label, and its step
    took_seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    waited: set[str] = field(default_factory=set)

    @property
    def labels(self) -> str:
        return "".join(label for label, _ in self.steps)

    def lengths(self, count: int) -> list[int]:
        return [self.labels.count(label) for label in LABELS[:count]]


class Stepper:
    """A few clients on the database alias `default`. Close it before the database is flushed."""

    def __init__(self, count: int) -> None:
        # Not a SimpleQueue: on Python 3.11 and 3.12 its get(timeout=0.001) can block for ever.
        self._reports: Queue[tuple[Client, ClientState]] = Queue()
        self._actors = [Client(number, self._reports) for number in range(count)]
        self._observer = connections["default"].copy()
        self._observer.ensure_connection()
        self._waiting: set[Client] = set()
        for _ in self._actors:
            self._reports.get(timeout=DEADLINE_SECONDS)

    def close(self) -> None:
        for client in self._actors:
            client.close()
        self._observer.close()

    def run(self, scripts: Sequence[Script], choose: Choose, check: Check = list) -> Order:
        """
        Run the scripts, one client each. `choose` selects the next client among those that can run.

        check: what must hold whenever a transaction has ended; it returns the problems.
        """
        order = Order()
        clients = self._actors[: len(scripts)]
        try:
            self._run(order, clients, scripts, choose, check)
        except BaseException:
            self._release_all(clients)  # or they would keep their locks
            raise
        order.problems += [f"{client.label} raised {client.error!r}" for client in clients if client.error is not None]
        return order

    def _run(
        self, order: Order, clients: Sequence[Client], scripts: Sequence[Script], choose: Choose, check: Check
    ) -> None:
        for client, script in zip(clients, scripts, strict=True):
            client.begin(script)
            self._wait_until_stopped(clients)
        while any(client.state is not ClientState.ENDED for client in clients):
            runnable = self._runnable(clients)
            if not runnable or len(order.steps) > MAX_STEPS:
                order.problems.append("deadlock" if not runnable else f"no end after {MAX_STEPS} steps")
                self._release_all(clients)
                break
            self._step(order, clients, runnable, choose)
            if order.steps[-1][1].startswith(ENDS):
                order.problems += check()

    def _step(self, order: Order, clients: Sequence[Client], runnable: Sequence[Client], choose: Choose) -> None:
        client = choose(runnable)
        order.steps.append((client.label, client.before))
        is_end = client.before in ("COMMIT", "ROLLBACK")
        began_at = time.monotonic()
        client.go()
        self._wait_until_stopped(clients)
        order.took_seconds.append(time.monotonic() - began_at)
        order.waited |= {other.before for other in clients if other.state is ClientState.RUNNING}
        for other in clients:
            if is_end and other is not client and other.state is ClientState.AFTER_COMMIT:
                other.state = ClientState.STOPPED

    def _runnable(self, clients: Sequence[Client]) -> list[Client]:
        for states in ([ClientState.STOPPED], [ClientState.AFTER_COMMIT, ClientState.LAST]):
            if runnable := [client for client in clients if client.state in states]:
                return runnable
        return []

    def _wait_until_stopped(self, clients: Sequence[Client]) -> None:
        """Return when each client has stopped or waits for another. Ask the server only about slow statements."""
        # Sums what it meant to wait: a clock would count a pause of the whole machine, too.
        waited_seconds = 0.0
        waiting, check_seconds = self._waiting, FIRST_CHECK_SECONDS
        while out := [client for client in clients if client.state is ClientState.RUNNING]:
            if not waiting.issuperset(out):
                can_wait = len(out) > 1 or any(client.may_hold_locks for client in clients if client is not out[0])
                timeout = check_seconds if can_wait else LONGEST_SILENCE_SECONDS
                with suppress(Empty):
                    self._note(self._reports.get(timeout=timeout))
                    continue
                waited_seconds += timeout
                check_seconds = min(2 * check_seconds, LONGEST_CHECK_SECONDS)
            waiting = self._blocked_clients(out)
            if waiting.issuperset(out) and self._reports.empty():
                break
            assert waited_seconds < DEADLINE_SECONDS, [client.before for client in out]
        self._waiting = set(out)

    def _note(self, report: tuple[Client, ClientState]) -> None:
        client, state = report
        client.state = state

    def _blocked_clients(self, out: Sequence[Client]) -> set[Client]:
        pids = [client.pid for client in self._actors]
        parameters = [[client.pid for client in out], pids]
        blocked = {pid for (pid,) in self._observer.connection.execute(BLOCKED_SESSIONS, parameters, prepare=True)}
        return {client for client in out if client.pid in blocked}

    def _release_all(self, clients: Sequence[Client]) -> None:
        """Let the server resolve the deadlock and all clients run to their end."""
        for client in clients:
            client.runs_freely = True
            if client.state in (ClientState.STOPPED, ClientState.AFTER_COMMIT, ClientState.LAST):
                client.go()
        while any(client.state is not ClientState.ENDED for client in clients):
            client, state = self._reports.get(timeout=DEADLINE_SECONDS)
            client.state = state
            if state is not ClientState.ENDED:  # it had stopped before `runs_freely` was set
                client.go()
        self._waiting = set()

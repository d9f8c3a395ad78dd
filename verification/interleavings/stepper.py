"""
A stepper: several connections whose statements run one at a time, in an order that somebody chooses.

Each actor is a thread with a connection of its own that stops before every statement and every COMMIT or
ROLLBACK. A step lets one of them run; it is over when the statement has ended or waits for a lock of another
actor. What waited goes on by itself as soon as it can, as it would without us.
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
# For a statement to end before we ask whether it waits; doubled each time, or a busy machine does little but ask.
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.001, 0.032
LETTERS = "ABC"
MOST_STEPS = 500  # of one order: more is no progress
# They read and lock nothing: under READ COMMITTED they commute with everything, and no order needs them apart.
QUIET = ("SAVEPOINT", "RELEASE", "lock_timeout", "SELECT CLOCK_TIMESTAMP()")
WHO_WAITS = "SELECT pid FROM unnest(%s::int[]) AS pid WHERE pg_blocking_pids(pid) && %s::int[]"
ALONE = "alone: "  # before a statement that is a transaction of its own
LOCKED = "locked: "  # before a statement of a transaction that has locked the tasks it works on

Script = Callable[[], object]
Choose = Callable[[Sequence["Actor"]], "Actor"]


class Place(Enum):
    """
    Where an actor is. OUT: let go, and not back yet.

    RESTING: at a stop, until another has ended a transaction. IDLE: at a stop, until no other can go.
    """

    STOPPED = auto()
    RESTING = auto()
    IDLE = auto()
    OUT = auto()
    ENDED = auto()


class Actor:
    """A thread with a connection of its own. `pid` is that of its session on the server."""

    def __init__(self, number: int, reports: Queue[tuple[Actor, Place]]) -> None:
        self.number = number
        self.letter = LETTERS[number]
        self.place = Place.ENDED
        self.before = ""  # what it is about to do
        self.is_free = False  # runs to its end without stopping
        self.is_in_others_way = False  # may hold locks: its transaction has begun
        self._has_locked = False
        self.error: Exception | None = None
        self.pid = 0
        self._reports = reports
        self._scripts: SimpleQueue[Script | None] = SimpleQueue()
        self._go = threading.Lock()  # held but for the moment in which it may go on
        self._go.acquire()
        self._thread = threading.Thread(target=self._live, name=f"actor-{self.letter}", daemon=True)
        self._thread.start()

    # --- from outside

    def begin(self, script: Script) -> None:
        self.error, self.is_free, self.place = None, False, Place.OUT
        self._scripts.put(script)

    def go(self) -> None:
        self.place = Place.OUT
        self._go.release()

    def close(self) -> None:
        self._scripts.put(None)
        self._thread.join(DEADLINE_SECONDS)

    # --- inside its thread

    def _live(self) -> None:
        connection = connections["default"]
        connection.ensure_connection()
        self.pid = connection.connection.info.backend_pid
        # As the executor's own connection: planning each statement anew took a third of an order.
        connection.connection.execute(statement("generic_plans"))
        connection.connection.prepare_threshold = 0
        self._stop_before_ends(connection)
        self._reports.put((self, Place.ENDED))
        try:
            with connection.execute_wrapper(self._stop_before_statement):
                while (script := self._scripts.get()) is not None:
                    _here.actor = self
                    self._perform(script)
        finally:
            connection.close()

    def _perform(self, script: Script) -> None:
        try:
            script()
        except Exception as error:  # noqa: BLE001 what a script raises is a finding, whatever it is
            self.error = error
        self._reports.put((self, Place.ENDED))

    def _stop_before_ends(self, connection: Any) -> None:
        for name in ("_commit", "_rollback"):
            setattr(connection, name, self._stopping(name[1:].upper(), getattr(connection, name)))

    def _stopping(self, words: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def stop_and_call() -> Any:
            self.stop(words)
            self._has_locked = False
            answer = call()
            self.is_in_others_way = False
            return answer

        return stop_and_call

    def _stop_before_statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        words = name_of(sql)
        if not words.startswith(QUIET):
            is_alone = not context["connection"].in_atomic_block
            self.stop((ALONE if is_alone else LOCKED if self._has_locked else "") + words)
            self._has_locked |= words == "lock_tasks" or " FOR NO KEY UPDATE" in words or " FOR UPDATE" in words
            self.is_in_others_way |= not is_alone
        return execute(sql, params, many, context)

    def stop(self, words: str, place: Place = Place.STOPPED) -> None:
        if not self.is_free:
            self.before = words
            self._reports.put((self, place))
            self._go.acquire()


class _Here(threading.local):
    actor: Actor | None = None


_here = _Here()


def rest(place: Place) -> None:
    """Inside an actor: do nothing until others have done something; outside: nothing at all."""
    if _here.actor is not None:
        _here.actor.stop("go on", place)


@cache
def named_statements() -> dict[str, str]:
    names = [path.name.removesuffix(".sql") for path in (files("jobqueue.engine.postgres") / "sql").iterdir()]
    return {statement(name): name for name in names}


@cache
def name_of(sql: str) -> str:
    """Name a statement by its file, or by its first and last words."""
    if sql in named_statements():
        return named_statements()[sql]
    words = " ".join(sql.replace('"', "").replace("jobqueue_", "").split())
    return words if len(words) <= 90 else f"{words[:30]} ... {words[-55:]}"


@dataclass
class Order:
    """One order as it ran. took_seconds: each of its steps, which tells a busy machine from a wait."""

    steps: list[tuple[str, str]] = field(default_factory=list)  # an actor's letter, and what it was about to do
    took_seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def letters(self) -> str:
        return "".join(letter for letter, _ in self.steps)

    def lengths(self, count: int) -> list[int]:
        return [self.letters.count(letter) for letter in LETTERS[:count]]


class Stepper:
    """A few actors on the server of the alias `default`. Close it before the database is flushed."""

    def __init__(self, count: int) -> None:
        # Not a SimpleQueue: where Python 3.11 or 3.12 is late to look again, its get(timeout=0.001) waits for ever.
        self._reports: Queue[tuple[Actor, Place]] = Queue()
        self._actors = [Actor(number, self._reports) for number in range(count)]
        self._observer = connections["default"].copy()
        self._observer.ensure_connection()
        self._waiting: set[Actor] = set()
        for _ in self._actors:
            self._reports.get(timeout=DEADLINE_SECONDS)

    def close(self) -> None:
        for actor in self._actors:
            actor.close()
        self._observer.close()

    def run(self, scripts: Sequence[Script], choose: Choose) -> Order:
        """Run the scripts, one actor each, in the order that `choose` makes of those who can go."""
        order = Order()
        actors = self._actors[: len(scripts)]
        for actor, script in zip(actors, scripts, strict=True):
            actor.begin(script)
            self._settle(actors)
        while any(actor.place is not Place.ENDED for actor in actors):
            able = self._able(actors)
            if not able or len(order.steps) > MOST_STEPS:
                order.problems.append("deadlock" if not able else f"no end after {MOST_STEPS} steps")
                self._let_all_go(actors)
                break
            self._step(order, actors, able, choose)
        order.problems += [f"{actor.letter} raised {actor.error!r}" for actor in actors if actor.error is not None]
        return order

    def _step(self, order: Order, actors: Sequence[Actor], able: Sequence[Actor], choose: Choose) -> None:
        actor = choose(able)
        order.steps.append((actor.letter, actor.before))
        is_end = actor.before in ("COMMIT", "ROLLBACK")
        began_at = time.monotonic()
        actor.go()
        self._settle(actors)
        order.took_seconds.append(time.monotonic() - began_at)
        for other in actors:
            if is_end and other is not actor and other.place is Place.RESTING:
                other.place = Place.STOPPED

    def _able(self, actors: Sequence[Actor]) -> list[Actor]:
        for places in ([Place.STOPPED], [Place.RESTING, Place.IDLE]):
            if able := [actor for actor in actors if actor.place in places]:
                return able
        return []

    def _settle(self, actors: Sequence[Actor]) -> None:
        """Return when each actor is back, or waits for another. Asks the server only about those who take long."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        waiting, look_seconds = self._waiting, FIRST_LOOK_SECONDS
        while out := [actor for actor in actors if actor.place is Place.OUT]:
            if not waiting.issuperset(out):
                can_wait = len(out) > 1 or any(actor.is_in_others_way for actor in actors if actor is not out[0])
                with suppress(Empty):
                    self._note(self._reports.get(timeout=look_seconds if can_wait else DEADLINE_SECONDS))
                    continue
                look_seconds = min(2 * look_seconds, LONGEST_LOOK_SECONDS)
            waiting = self._who_waits(out)
            if waiting.issuperset(out) and self._reports.empty():
                break
            assert time.monotonic() < deadline, [actor.before for actor in out]
        self._waiting = set(out)

    def _note(self, report: tuple[Actor, Place]) -> None:
        actor, place = report
        actor.place = place

    def _who_waits(self, out: Sequence[Actor]) -> set[Actor]:
        pids = [actor.pid for actor in self._actors]
        asked = [[actor.pid for actor in out], pids]
        found = {pid for (pid,) in self._observer.connection.execute(WHO_WAITS, asked, prepare=True)}
        return {actor for actor in out if actor.pid in found}

    def _let_all_go(self, actors: Sequence[Actor]) -> None:
        """Let the server break the deadlock, and everybody run to the end."""
        for actor in actors:
            actor.is_free = True
            if actor.place in (Place.STOPPED, Place.RESTING, Place.IDLE):
                actor.go()
        while any(actor.place is not Place.ENDED for actor in actors):
            actor, place = self._reports.get(timeout=DEADLINE_SECONDS)
            actor.place = place
            if place is not Place.ENDED:  # it had stopped before it was told that it is free
                actor.go()
        self._waiting = set()

"""What an executor does for the queue between its claims: wake what is due, rescue, sweep, look for suspects."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from uuid import UUID

from jobqueue.engine.base import Engine
from jobqueue.executor.appetite import Appetite
from jobqueue.executor.heartbeat import Heart, Housekeeping
from jobqueue.executor.log import logger
from jobqueue.executor.suspects import Suspects
from jobqueue.failpoints import reach
from jobqueue.records import Command, Outcome, WakeResult

AGAIN_SECONDS = 0.05  # somebody holds a row that we want to write; it will not be long
LOOK_SECONDS = 0.5  # between looks what may be due: for alarms that others set, commands, lost executors
NO_ALARM_SECONDS = 3600.0
NEVER = float("inf")


class Upkeep:
    """Belongs to the pulse's thread, but for hurry(). on_command: hears what people ask of this executor."""

    def __init__(
        self,
        engine: Engine,
        executor_id: UUID,
        heart: Heart,
        appetite: Appetite,
        suspects: Suspects,
        on_command: Callable[[Command], None],
    ) -> None:
        self._engine, self._executor_id, self._appetite, self._suspects = engine, executor_id, appetite, suspects
        self._heart, self._housekeeping = heart, Housekeeping(engine, heart)
        self._on_command = on_command
        self._next_alarm_at, self._next_look_at = NEVER, time.monotonic()
        self._may_see_suspects = True
        self._strays_until = self._next_look_at  # while a claim that was cut off may still come true

    def hurry(self) -> None:
        """Look for mail soon; from any thread."""
        self._housekeeping.hurry()

    @property
    def due_in_seconds(self) -> float:
        return min(min(self._next_alarm_at, self._next_look_at) - time.monotonic(), self._housekeeping.due_in_seconds)

    def expect_alarm(self, outcome: Outcome) -> None:
        """A task of ours sleeps until some moment."""
        self._next_alarm_at = min(self._next_alarm_at, time.monotonic() + seconds_until(outcome))

    def expect_strays(self) -> None:
        """The database went away; the server may still work on a claim that we sent before."""
        self._next_look_at = time.monotonic()
        self._strays_until = NEVER

    @property
    def may_leave_strays(self) -> bool:
        """Whether the database went away, and has not been asked since what we hold."""
        return self._strays_until == NEVER

    def look(self, known: Collection[UUID], *, is_draining: bool) -> None:
        """Do what is due. known: the tasks in our hands."""
        now = time.monotonic()
        if now < self._strays_until or self._heart.sees_strays:
            self._release_strays(known)
            # From the first look that is answered: however long the database was away, and this process not running.
            self._strays_until = min(self._strays_until, now + self._engine.options.heartbeat_timeout)
        if now >= self._next_look_at:
            self._look_around(now)
        woken = self._wake_due(now) if now >= self._next_alarm_at else 0
        moved = self._housekeeping.run_if_due()
        if woken or moved:
            self._appetite.hurry()
            self._may_see_suspects = True
        if not is_draining and self._suspects.are_worth_a_look(is_alone=not known):
            self._suspects.seen(self._may_see_suspects and self._engine.has_suspects(self._appetite.serves()))

    def _look_around(self, now: float) -> None:
        due = self._engine.pending_maintenance(self._executor_id)
        self._next_look_at = now + LOOK_SECONDS
        self._next_alarm_at = NEVER if due.alarm_seconds is None else now + due.alarm_seconds
        self._may_see_suspects = due.has_suspects
        self._housekeeping.expect(due)
        if due.has_command and (command := self._engine.take_command(self._executor_id)):
            self._on_command(command)

    def _wake_due(self, now: float) -> int:
        woken = self._engine.wake_due()
        if woken.count:
            reach("due.after")
        self._next_alarm_at = now + seconds_to_alarm(woken)
        return woken.count

    def _release_strays(self, known: Collection[UUID]) -> None:
        """Hand back what we hold without knowing: a claim whose answer was lost."""
        strays = self._engine.release_strays(self._executor_id, known)
        if strays:
            logger.warning("task.released %d tasks whose claim was cut off", strays)
            self._appetite.hurry()


def seconds_until(outcome: Outcome) -> float:
    """How long until a task may be due again; 0 where only the database can tell."""
    if outcome.wake_at is not None:
        return 0.0
    waits = [wait for wait in (outcome.wake_after_seconds, outcome.look_after_seconds) if wait is not None]
    return min(waits, default=NO_ALARM_SECONDS)


def seconds_to_alarm(woken: WakeResult) -> float:
    if woken.next_seconds is None:
        return NO_ALARM_SECONDS
    if woken.next_seconds <= 0.0 and not woken.count:
        return AGAIN_SECONDS  # it is due, and somebody holds its row
    return max(0.0, woken.next_seconds)

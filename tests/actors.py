"""Actors that tests start."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from jobqueue import Actor, Done, PollContext, Spawn, Suspend
from tests.actor import programs as programs
from tests.models import Effect


class Fibonacci(Actor):
    """Computes a Fibonacci number with two children for each step."""

    @dataclass
    class State:
        total: int = 0
        pending: int | None = None

    def poll(self, context: PollContext[State], n: int) -> Any:
        state = context.state
        if state.pending is None:
            if n <= 2:
                return Done(1)
            state.pending = 2
            return Spawn(Fibonacci, n - 1), Spawn(Fibonacci, n - 2), Suspend()
        for message in context.inbox.take():
            state.total += message.body
            state.pending -= 1
        return Suspend() if state.pending else Done(state.total)


class ByHand(Actor):
    """Ends in a commit function, some seconds after the start of its poll."""

    def poll(self, context: PollContext[Any], seconds: float = 0.0) -> Any:
        def commit() -> Done:
            Effect.objects.create(task_id=context.task_result.id, kind="by hand", pid=os.getpid())
            return Done()

        time.sleep(seconds)
        return commit


class Diary(Actor, allow_http=True):
    """Waits for messages and leaves them in its inbox."""

    Message = str | int

    def poll(self, context: PollContext[Any], title: str = "") -> Any:
        return Suspend()

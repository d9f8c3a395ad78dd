"""The actors of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from jobqueue import Actor, Done, PollContext, Spawn, Suspend


class Fibonacci(Actor):
    """Compute a Fibonacci number with two children for each step. benchmarks/naive.py does the same work."""

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


class TimedSleeper(Actor):
    """Record the time of each message from the INSERT to the poll, then sleep again."""

    @dataclass
    class State:
        waits: list[float] = field(default_factory=list)

    def poll(self, context: PollContext[State]) -> Any:
        now = timezone.now()
        context.state.waits += [(now - message.sent_at).total_seconds() for message in context.inbox.take()]
        return Suspend()

"""Actors that acceptance tests run in executor processes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from jobqueue import Actor, Backoff, Done, Kind, PollContext, Spawn, Suspend


class FlakyFibonacci(Actor, max_attempts=30, backoff=Backoff(base=0.02, factor=1.2, jitter=1.0)):
    """
    Fails in a fifth of its polls, after all the work is done.

    path: the path from the root. Path and seed decide which polls fail.
    """

    @dataclass
    class State:
        total: int = 0
        pending: int | None = None

    def poll(self, context: PollContext[State], n: int, seed: int, path: str = "") -> Any:
        returned = self.work(context, n, seed, path)
        if random.Random(f"{seed}{path}/{context.polls}/{context.attempt}").random() < 0.2:
            raise RuntimeError("bad luck")
        return returned

    def work(self, context: PollContext[State], n: int, seed: int, path: str) -> Any:
        state = context.state
        if state.pending is None:
            if n <= 2:
                return Done(1)
            state.pending = 2
            return *(Spawn(FlakyFibonacci, n - less, seed, f"{path}{less}") for less in (1, 2)), Suspend()
        for message in context.inbox.take(Kind.CHILD_SUCCESSFUL):
            state.total += message.body
            state.pending -= 1
        return Suspend() if state.pending else Done(state.total)


class Sleeper(Actor):
    """Records the time from the sending of each message to the start of its poll."""

    @dataclass
    class State:
        waits: list[float] = field(default_factory=list)

    def poll(self, context: PollContext[State]) -> Any:
        now = timezone.now()
        context.state.waits += [(now - message.sent_at).total_seconds() for message in context.inbox.take()]
        return Suspend()

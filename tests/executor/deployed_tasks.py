"""Two versions of the same tasks: `deploy()` gives an executor one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from jobqueue import Actor, Concurrency, Done, PollContext, Rate, Spawn, Suspend, task
from jobqueue.declarations.function import FunctionTask, declared
from tests.executor.tasks import AT_ONCE

NAME = "deployed.call"


def deploy(monkeypatch: pytest.MonkeyPatch, code: Any, name: str = NAME) -> None:
    """Let this process have this code under the name; None: no code."""
    declaration: FunctionTask[..., Any] | None = getattr(code, "task", code)
    if declaration is None:
        monkeypatch.delitem(declared, name, raising=False)
    else:
        monkeypatch.setitem(declared, name, declaration)


@task(max_attempts=2, backoff=AT_ONCE)
def one_argument(a: int) -> list[Any]:
    return [a]


@task
def two_arguments(a: int, b: int) -> list[Any]:
    return [a, b]


@task
async def one_later(a: int) -> list[Any]:
    return [a]


@task
async def two_later(a: int, b: int) -> list[Any]:
    return [a, b]


@task(takes_context=True)
def one_with_context(context: Any, a: int) -> list[Any]:
    return [a]


@task(takes_context=True)
def two_with_context(context: Any, a: int, *, b: int) -> list[Any]:
    return [a, b]


@task(atomic=True)
def one_atomic(a: int) -> list[Any]:
    return [a]


@task
def of_customer(customer: int) -> int:
    return customer


@task
def of_client(client: int) -> int:
    return client


@task
def any_positional(*numbers: int) -> Sequence[int]:
    return numbers


@task
def any_keyword(**numbers: int) -> dict[str, int]:
    return numbers


@task(max_attempts=2, backoff=AT_ONCE)
def wrong_inside(a: int) -> None:
    one_argument.func(a, 2)


class OneActor(Actor):
    def poll(self, context: PollContext[Any], a: int) -> Any:
        return Done([a])


class TwoActor(Actor):
    async def poll(self, context: PollContext[Any], a: int, b: int) -> Any:
        return Done([a, b])


@task(concurrency=Concurrency(1, key="k", shared="deployed"))
def one_limited(a: int) -> list[Any]:
    return [a]


@task(concurrency=Concurrency(1, key="k", shared="deployed"))
def neighbour() -> str:
    return "done"


@task(rate=Rate(1, per=3600, key="{a}"))
def one_at_a_rate(a: int) -> list[Any]:
    return [a]


@task(rate=Rate(1, per=3600, key="{a}"))
def two_at_a_rate(a: int, b: int) -> list[Any]:
    return [a, b]


class OfNumber(Actor):
    @dataclass
    class State:
        n: int = 0

    def poll(self, context: PollContext[State]) -> Any:
        return Done(context.state.n)


class OfText(Actor):
    @dataclass
    class State:
        n: str = ""

    async def poll(self, context: PollContext[State]) -> Any:
        return Done(context.state.n)


class OfMore(Actor):
    class State(TypedDict):
        n: int
        total: int

    def poll(self, context: PollContext[State]) -> Any:
        return Done(context.state["total"])


class OfPicky(Actor):
    @dataclass
    class State:
        n: int = 0

        def __post_init__(self) -> None:
            raise KeyError(self.n)

    def poll(self, context: PollContext[State]) -> Any:
        return Done(context.state.n)


class Spawner(Actor):
    """Ends with the status of its child."""

    def poll(self, context: PollContext[Any]) -> Any:
        if context.polls == 0:
            return Spawn(two_arguments, 1, 2), Suspend()
        return Done([str(message.kind) for message in context.inbox.take()])

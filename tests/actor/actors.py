"""Actors with keywords, typed state and typed messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
from django.contrib.auth.models import Group

from jobqueue import Actor, Backoff, Done, PollContext, Spawn, Suspend, task
from jobqueue.conf.options import options_for


class Declared(
    Actor,
    name="tests.declared",
    queue_name="declared",
    priority=7,
    max_attempts=9,
    backoff=Backoff(base=3.0),
    timeout=timedelta(seconds=30),
    give_up_on=(KeyError,),
):
    """Uses every keyword of an actor class."""

    def poll(self, context: PollContext[Any], first: int, *, second: str = "b") -> Any:
        return Done([first, second, context.attempt, context.idempotency_key, context.key])


class Patient(Actor, abstract=True, queue_name="slow", max_attempts=7, timeout=60, priority=5):
    """An abstract base class with keywords."""

    def poll(self, context: PollContext[Any], n: int) -> Any:
        return Done(n)


class VeryPatient(Patient, max_attempts=20, priority=0):
    pass


class Later(Actor):
    async def poll(self, context: PollContext[Any], n: int) -> Any:
        return Done(n + 1)


class Generating(Actor):
    def poll(self, context: PollContext[Any]) -> Any:
        context.state["polls"] = context.state.get("polls", 0) + 1
        if context.state["polls"] == 2:
            yield Done(context.state["polls"])


@dataclass
class Item:
    name: str
    at: datetime | None = None


class WithDataclass(Actor, max_attempts=1):
    """Counts its polls. `change` is the first value."""

    @dataclass
    class State:
        count: int = 0
        items: list[Item] = field(default_factory=list)

    def poll(self, context: PollContext[State], change: Any = 1) -> Any:
        context.state.count = change if context.state.count == 0 else context.state.count + 1
        context.state.items.append(Item("a", datetime(2030, 1, 1)))
        if context.state.count != 3:
            return None
        assert all(isinstance(item.at, datetime) for item in context.state.items)
        return Done(context.state.count)


class CountState(TypedDict, total=False):
    count: int


class WithoutState(Actor, max_attempts=1):
    def poll(self, context: PollContext[Any], change: Any = 1) -> Any:
        before = context.state.get("count", 0)
        context.state["count"] = before + 1 if before else change
        return Done(context.state["count"]) if context.state["count"] == 3 else None


class WithTypedDict(WithoutState):
    State = CountState


class WithStruct(Actor, max_attempts=1):
    class State(msgspec.Struct):
        count: int = 0

    def poll(self, context: PollContext[State], change: Any = 1) -> Any:
        context.state.count = context.state.count + 1 if context.state.count else change
        return Done(context.state.count) if context.state.count == 3 else None


class WithNumberedState(Actor, max_attempts=1):
    """A state with keys that JSON stores as text."""

    @dataclass
    class State:
        seen: dict[int, str] = field(default_factory=dict)
        of: dict[UUID, date] = field(default_factory=dict)

    def poll(self, context: PollContext[State], change: Any = "a") -> Any:
        context.state.seen[len(context.state.seen) + 1] = change
        context.state.of[UUID(int=7)] = date(2030, 1, 1)
        return Done(max(context.state.seen)) if len(context.state.seen) == 3 else None


class Publish(msgspec.Struct, tag="publish", frozen=True):
    title: str


class Discard(msgspec.Struct, tag="discard", frozen=True):
    reason: str = ""


@dataclass(frozen=True)
class Approve:
    by: str
    on: date | None = None
    type: Literal["approve"] = "approve"


@dataclass(frozen=True)
class Reject:
    type: Literal["reject", "refuse"] = "reject"


class TypedByDataclasses(Actor, max_attempts=1):
    """Waits for a message: a dataclass, a text or a tagged Struct."""

    Message = Approve | Reject | Publish | Discard | str

    def poll(self, context: PollContext[Any]) -> Any:
        return Done(repr(context.inbox.popleft().body)) if context.inbox else Suspend()


class TypedActor(Actor, max_attempts=2, backoff=Backoff(base=10.0, jitter=0.0)):
    """Waits for a tagged Struct."""

    Message = Publish | Discard

    def poll(self, context: PollContext[Any]) -> Any:
        if publish := context.inbox.take(Publish):
            return Done(f"published {publish[0].body.title}")
        if discard := context.inbox.take(Discard):
            return Done(f"discarded {discard[0].body.reason}")
        return Suspend()


class TypedByDict(Actor):
    Message = CountState

    def poll(self, context: PollContext[Any]) -> Any:
        return Done()


PRICES = {"print": 5, "poster": 12}


@dataclass
class ArticleOrder:
    """A message that raises KeyError for an unknown article."""

    article: str
    price: int = 0

    def __post_init__(self) -> None:
        self.price = PRICES[self.article]


class Checked(Actor, max_attempts=2, backoff=Backoff(base=10.0, jitter=0.0)):
    """Ends with the price of its first order."""

    Message = ArticleOrder

    def poll(self, context: PollContext[Any]) -> Any:
        return Done(context.inbox.popleft().body.price) if context.inbox else Suspend()


@task
def double(n: int) -> int:
    return 2 * n


class Elsewhere(Actor, backend="sqlite"):
    """An actor of another backend. Its child names no backend."""

    def poll(self, context: PollContext[Any], n: int) -> Any:
        if ended := context.inbox.take():
            return Done(ended[0].body)
        return Suspend() if context.polls else (Spawn(double, n), Suspend())


@task(atomic=True)
def make_group(name: str) -> str:
    Group.objects.using(options_for("default").database).create(name=name)
    return name


@task(max_attempts=2, backoff=Backoff(base=10.0, jitter=0.0))
def fail(message: str = "failed") -> None:
    raise ValueError(message)

"""@step: the options of a step of a workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from types import FunctionType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.actor import Actor
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.options import as_classes
from jobqueue.values import kinds
from jobqueue.values.backoff import Backoff
from jobqueue.values.kinds import MaxAttempts, Timeout
from jobqueue.values.text import is_text

P = ParamSpec("P")
R = TypeVar("R")
MAX_NAME_CHARACTERS = 200  # the journal adds a number

running_step: ContextVar[str] = ContextVar("jobqueue.running_step")  # the idempotency key of the step that runs


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredStep(Generic[P, R]):
    """A function with the options of a step. Called directly, it is the function."""

    function: Callable[P, R]  # plain or async
    name: str = ""
    """The name in the journal, instead of the function's."""
    max_attempts: int | None = None
    """The number of attempts, the first included. None: the default of the backend's OPTIONS, as for tasks."""
    backoff: Backoff | None = None  # waits between attempts
    retry_on: tuple[type[BaseException], ...] | None = None
    """Exceptions that are retried; None for all."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """Exceptions that are not retried, even if retry_on has them."""
    timeout: float | timedelta | None = None
    """Seconds or a timedelta for one attempt. It fails with a TimeoutError."""
    atomic: bool = False
    """The function's writes and its result are one transaction on the queue's database: exactly once."""
    parameters: Sequence[str] = field(default=(), init=False, compare=False, repr=False)
    """The names of the arguments by position; none for a callable that is no function."""

    def __post_init__(self) -> None:
        if is_task(self.function):
            raise InvalidTask(
                f"{getattr(self.function, 'name', self.function)} is a task, not a step. context.step() runs it as a "
                "child. compensate() takes a function, which may enqueue the task."
            )
        name = self.name or getattr(self.function, "__name__", "")
        where = f"step {name or self.function!r:.100}"
        if not is_text(name, MAX_NAME_CHARACTERS) or name == "<lambda>" or "#" in name:
            raise InvalidTask(
                f"{where} needs a name of at most {MAX_NAME_CHARACTERS} characters without '#': step(name='...'), or "
                "using(name='...')."
            )
        for option, kind in (("max_attempts", MaxAttempts | None), ("timeout", Timeout)):
            for problem in kinds.problems(option, getattr(self, option), kind):
                raise InvalidTask(f"{where}: {problem}.")
        if self.atomic and inspect.iscoroutinefunction(self.function):
            raise InvalidTask(f"{where}: atomic=True needs a plain function: Django has no transactions in async code.")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "parameters", positional_names(self.function))
        object.__setattr__(self, "give_up_on", as_classes(self.give_up_on))
        object.__setattr__(self, "retry_on", None if self.retry_on is None else as_classes(self.retry_on))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def using(self, **options: Any) -> DeclaredStep[P, R]:
        """Return a copy with other options: `context.step(ship.using(name=f"ship-{item}"), item)`."""
        return replace(self, **options)


class StepDecorator(Protocol):
    """The decorator that `step(...)` returns."""

    def __call__(self, function: Callable[P, R], /) -> DeclaredStep[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> DeclaredStep[P, R]: ...
@overload
def step(
    *,
    name: str = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | None = ...,
    retry_on: type[BaseException] | Sequence[type[BaseException]] | None = ...,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = ...,
    timeout: float | timedelta | None = ...,
    atomic: bool = ...,
) -> StepDecorator: ...
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Give a function the options of a step, which `context.step()` applies. DeclaredStep describes them."""

    def decorate(func: Callable[..., Any]) -> DeclaredStep[..., Any]:
        return DeclaredStep(function=func, **options)

    return decorate if function is None else decorate(function)


def as_step(function: Callable[..., Any]) -> DeclaredStep[..., Any]:
    """Return a function as a step; a plain one has the default options."""
    if isinstance(function, DeclaredStep):
        return function
    return plain_step(function) if type(function) is FunctionType else DeclaredStep(function=function)


@lru_cache(maxsize=1024)  # a workflow may define functions in its body, new ones in each run
def plain_step(function: Callable[..., Any]) -> DeclaredStep[..., Any]:
    return DeclaredStep(function=function)


def is_task(function: Any) -> bool:
    return isinstance(function, FunctionTask) or (isinstance(function, type) and issubclass(function, Actor))


def positional_names(function: Any) -> Sequence[str]:
    """Return the names of the parameters of a plain function; none for other callables."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None or inspect.ismethod(function) else code.co_varnames[: code.co_argcount]


def step_key() -> str:
    """Return the idempotency key of the step that runs, the same in each attempt. Raises LookupError outside a step."""
    return running_step.get()

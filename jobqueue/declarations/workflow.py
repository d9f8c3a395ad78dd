"""@workflow: durable functions as tasks."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from django.apps import apps

from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.actor import PolledTask
from jobqueue.declarations.function import CommonOptions, FunctionTask, invalid_declarations, unknown_option
from jobqueue.declarations.limits import format_template, template_problems
from jobqueue.declarations.workflow_context import AsyncWorkflowContext, WorkflowContext
from jobqueue.exceptions import InvalidArguments, NonDeterminism
from jobqueue.values import kinds
from jobqueue.values.arguments import read_parameters
from jobqueue.values.text import is_text

P = ParamSpec("P")
R = TypeVar("R")
MAX_KEY_CHARACTERS = 255


class WorkflowOptions(CommonOptions, total=False):
    """Options of `@workflow`."""

    key: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTask(PolledTask[P, R], Generic[P, R]):
    """A durable function as a task. `key` may name arguments: "order-{order_id}"."""

    version: str | None = None
    """The version of the code, for people. None: a digest of the function's source."""

    def _prepare(self) -> None:
        FunctionTask._prepare(self)
        for problem in template_problems("key", self.key, read_parameters(self.func, True)) if self.key else ():
            raise InvalidTask(f"{self.name}: {problem}.")

    @property
    def code(self) -> str:
        """The version of the code that this process has."""
        return self.version or digest_of_code(self.func)

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the unique key of a call, whose arguments fit. Raises InvalidArguments."""
        assert self.key is not None
        try:
            key = format_template(self.key, read_parameters(self.func, True), args, kwargs)
        except Exception as error:  # a value that the template does not fit
            raise InvalidArguments(f"{self.name}(): cannot make its key {self.key!r}: {error!r:.200}") from error
        if not is_text(key, MAX_KEY_CHARACTERS):
            raise InvalidArguments(f"{self.name}(): its key {kinds.problem(key, kinds.text(MAX_KEY_CHARACTERS))}")
        return key


@functools.cache
def digest_of_code(function: Callable[..., Any]) -> str:
    """Return a digest of the code that this process runs. Its file may be newer."""
    text = repr(parts_of_code(inspect.unwrap(function).__code__))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def parts_of_code(value: Any) -> Any:
    """
    Reduce the code of a function to its instructions, without lines, files and comments.

    value: its code, or a constant of it.
    """
    match value:
        case CodeType():
            return value.co_code, value.co_names, value.co_varnames, [*map(parts_of_code, value.co_consts)]
        case frozenset():
            return sorted(map(repr, value))  # its own order differs between processes
    return value


class WorkflowDecorator(Protocol):
    """The decorator that `workflow(...)` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncWorkflowContext, P], Coroutine[Any, Any, R]], /
    ) -> WorkflowTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[WorkflowContext, P], R], /) -> WorkflowTask[P, R]: ...


@overload
def workflow(
    function: Callable[Concatenate[AsyncWorkflowContext, P], Coroutine[Any, Any, R]], /
) -> WorkflowTask[P, R]: ...
@overload
def workflow(function: Callable[Concatenate[WorkflowContext, P], R], /) -> WorkflowTask[P, R]: ...
@overload
def workflow(**options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
def workflow(function: Callable[..., Any] | None = None, /, **options: Unpack[WorkflowOptions]) -> Any:
    """
    Declare a module-level function as a workflow: a task that survives crashes, deploys and waits of any length.

    Put it in the workflows.py of an installed app, so that executors find it. Its first parameter is called `context`.
    The function runs from its top after each wait. Calls of the context that
    have ended are recorded, and return what they returned before. So code outside of steps must do the same each time.
    options: those of `@task`, but for `atomic` and `expires`. key: a unique key with names of arguments, such as
    "order-{order_id}", by which `send()` finds the workflow. version: of the code, for people.
    """
    error = unknown_option("workflow()", "option", options, WorkflowOptions)
    if error and apps.ready:
        raise error

    def decorate(func: Callable[..., Any]) -> WorkflowTask[..., Any]:
        if error:
            return invalid_declarations.placeholder_for(WorkflowTask, func, error)  # type: ignore[no-any-return]
        body = _driven(func) if inspect.iscoroutinefunction(func) else func
        declared: Any = WorkflowTask
        return declared(func=body, takes_context=True, **options)  # type: ignore[no-any-return]

    return decorate if function is None else decorate(function)


def _driven(function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., R]:
    """Return an `async def` workflow as a plain function. It needs no event loop: its calls end or suspend at once."""

    @functools.wraps(function)
    def drive(context: WorkflowContext, *args: Any, **kwargs: Any) -> R:
        coroutine, cause = function(context.as_async(), *args, **kwargs), None
        try:
            foreign = f"{coroutine.send(None)!r:.200}"
        except StopIteration as returned:
            return cast("R", returned.value)
        except RuntimeError as error:
            if "no running event loop" not in str(error):
                raise
            foreign, cause = "it needs an event loop", error
        finally:
            coroutine.close()
        raise NonDeterminism(
            f"The workflow awaited something other than its context: {foreign}. Await it in a step: "
            "await context.step(function)."
        ) from cause

    return drive

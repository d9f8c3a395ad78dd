"""@task: Django's Task with the options of a queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from jobqueue import registry
from jobqueue.backoff import Backoff
from jobqueue.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    InvalidTask,
    Task,
    TaskResult,
    task_backends,
)
from jobqueue.conf import RANGES, Options, seconds
from jobqueue.payload import escape

P = ParamSpec("P")
R = TypeVar("R")
ExceptionClasses = type[BaseException] | Sequence[type[BaseException]]

if TYPE_CHECKING:
    TaskOf = Task
else:

    class TaskOf:
        """`TaskOf[P, R]` is Task: Django's own class takes no parameters when the program runs."""

        def __class_getitem__(cls, _: Any) -> type[Task]:
            return Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTask(TaskOf[P, R], Generic[P, R]):
    """
    A function to be run later, and how. None stands for the default of the backend's OPTIONS.

    max_attempts: tries, the first included. timeout: seconds for one try. expires: not to be started
    after this moment, or this long after it was enqueued. name: what rows call the task instead of its
    dotted path, so that the function can move. retry_on, give_up_on: exceptions worth another try (all,
    when None), and exceptions that are not; give_up_on wins. atomic: the function and its completion
    are one transaction. key: at most one live task of the backend has it.
    """

    name: str = ""
    run_after: datetime | timedelta | None = None  # type: ignore[assignment]
    max_attempts: int | None = None
    backoff: Backoff | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    atomic: bool = False
    expires: datetime | timedelta | None = None
    key: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    # Derived: `name` where one was given. A copy made by using() must keep it.
    task_type: str = ""

    # super() does not know the class that dataclass(slots=True) makes anew: hence Task.__post_init__(self).
    def __post_init__(self) -> None:
        if not inspect.isfunction(self.func):
            raise InvalidTask(f"@task decorates a function, not {self.func!r}.")
        object.__setattr__(self, "task_type", self.task_type or self.name or self.module_path)
        object.__setattr__(self, "name", self.name or self.func.__name__)
        object.__setattr__(self, "timeout", seconds(self.timeout))
        object.__setattr__(self, "retry_on", _classes(self.retry_on))
        object.__setattr__(self, "give_up_on", _classes(self.give_up_on) or ())
        for problem in _problems(self):
            raise InvalidTask(f"{self.name}: {problem}.")
        if isinstance(self.run_after, timedelta) and not issubclass(
            self.get_backend().task_class, FunctionTask
        ):
            # Other backends know moments only.
            object.__setattr__(self, "run_after", timezone.now() + self.run_after)
        Task.__post_init__(self)
        registry.declare(self)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _rebuild, (type(self), self.module_path, {**values, "func": None})

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: float | timedelta | None = None,
        expires: datetime | timedelta | None = None,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> FunctionTask[P, R]:
        """
        Make a copy with other options; None leaves one as it is.

        run_after, expires: a moment, or a timedelta from the moment it is enqueued by the database's
        clock. key: while a live task has it, enqueue() gives that task's result and adds nothing.
        """
        given = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "timeout": timeout,
            "expires": expires,
            "key": key,
            "metadata": metadata,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self, **changes)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """
        Add the task to its queue, in the caller's transaction.

        Raises InvalidArguments, and nothing is written, when the arguments do not fit.
        """
        return cast("TaskResult[P, R]", self.get_backend().enqueue(self, args, kwargs))  # type: ignore[arg-type]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """See enqueue()."""
        return cast("TaskResult[P, R]", await self.get_backend().aenqueue(self, args, kwargs))  # type: ignore[arg-type]

    def enqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[TaskResult[P, R]]:
        """
        Add one task per (args, kwargs), all or none, one statement per thousand; results come in order.

        Raises InvalidArguments, which says which call it was.
        """
        backend = self.get_backend()
        enqueue_many = getattr(backend, "enqueue_many", None)
        if enqueue_many is None:  # another backend, say in a test
            return [backend.enqueue(self, args, kwargs) for args, kwargs in calls]  # type: ignore[arg-type]
        return cast("list[TaskResult[P, R]]", enqueue_many(self, calls))

    async def aenqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[TaskResult[P, R]]:
        """See enqueue_many()."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)


def _rebuild(cls: type[FunctionTask[P, R]], path: str, values: dict[str, Any]) -> FunctionTask[P, R]:
    found = import_string(path)
    return cls(**{**values, "func": found.func if isinstance(found, Task) else found})


def changed(task: FunctionTask[P, R], **values: Any) -> FunctionTask[P, R]:
    """Copy a task without the checks of a declaration: for rows whose queue TASKS may no longer name."""
    copy = object.__new__(type(task))
    for f in fields(task):
        object.__setattr__(copy, f.name, values[f.name] if f.name in values else getattr(task, f.name))
    return copy


EARLIEST_YEAR, LATEST_YEAR = 1970, 9000
LONGEST = timedelta(days=365 * 1000)


def _classes(value: Any) -> Any:
    return (
        (value,)
        if isinstance(value, type)
        else tuple(value)
        if isinstance(value, list | set | frozenset)
        else value
    )


def _problems(task: FunctionTask[..., Any]) -> Iterable[str]:
    """Say what is wrong with the options of a declaration, one sentence each."""
    if task.max_attempts is not None and not _is_number("MAX_ATTEMPTS", task.max_attempts, int):
        yield f"max_attempts must be a whole number from 1 up, not {task.max_attempts!r}"
    if task.timeout is not None and not _is_number("TIMEOUT", task.timeout, int | float):
        yield f"timeout must be a number of seconds above 0 (a year at most) or a timedelta, not {task.timeout!r}"
    if task.backoff is not None and not isinstance(task.backoff, Backoff):
        yield f"backoff must be a jobqueue.Backoff, not {task.backoff!r}"
    for option in ("retry_on", "give_up_on"):
        value = getattr(task, option)
        if value is not None and not (
            isinstance(value, tuple)
            and all(isinstance(c, type) and issubclass(c, BaseException) for c in value)
        ):
            yield f"{option} must be an exception class or a tuple of them, not {value!r}"
    if not isinstance(task.atomic, bool):
        yield f"atomic must be True or False, not {task.atomic!r}"
    if task.atomic is True and inspect.iscoroutinefunction(task.func):
        yield "atomic=True needs a plain function: Django has no transactions in async code"
    for option, limit in (("task_type", 500), ("name", 500), ("key", 255), ("queue_name", 128)):
        value = getattr(task, option)
        if value is not None and not (
            isinstance(value, str) and 0 < len(value) <= limit and escape(value) == value
        ):
            yield f"{option} must be a text of 1 to {limit} characters, not {value!r}"
    if task.metadata is not None and not isinstance(task.metadata, Mapping):
        yield f"metadata must be a mapping, not {task.metadata!r}"
    yield from _time_problems("run_after", task.run_after)
    yield from _time_problems("expires", task.expires)
    if isinstance(task.expires, timedelta) and task.expires <= timedelta(0):
        yield f"expires must lie in the future, not {task.expires!r}"


def _is_number(option: str, value: Any, kinds: Any) -> bool:
    low, high = RANGES[option]
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def _time_problems(option: str, value: Any) -> Iterable[str]:
    match value:
        case None:
            pass
        case timedelta():
            if abs(value) > LONGEST:
                yield f"{option} must lie within a thousand years, not {value!r}"
        case datetime():
            if settings.USE_TZ and timezone.is_naive(value):
                yield f"{option} must be an aware datetime, not {value!r}"
            # A row with a moment outside of Python's calendar, once ranks are computed, cannot be read.
            elif not EARLIEST_YEAR <= value.year <= LATEST_YEAR:
                yield f"{option} must lie between the years {EARLIEST_YEAR} and {LATEST_YEAR}, not {value!r}"
        case _:
            yield f"{option} must be a datetime or a timedelta, not {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for one task once its row, its declaration and the backend's OPTIONS have spoken."""

    max_attempts: int
    backoff: Backoff
    timeout: float | None


def stored_options(task: FunctionTask[..., Any]) -> dict[str, Any]:
    """Give what using() changed about a declared task, as the row's `options` hold it."""
    declared = registry.get(task.task_type)
    options: dict[str, Any] = {}
    if declared is None or declared is task:
        return options
    if task.max_attempts != declared.max_attempts:
        options["max_attempts"] = task.max_attempts
    if task.timeout != declared.timeout:
        options["timeout"] = task.timeout
    if task.backoff is not None and task.backoff != declared.backoff:
        options["backoff"] = asdict(task.backoff)
    return options


def limits(task: FunctionTask[..., Any], stored: Mapping[str, Any], defaults: Options) -> Limits:
    """
    Work out what holds for a row: its own options, else the declaration's, else the backend's.

    stored: the row's `options`, decoded. Raises ValueError or TypeError where somebody wrote nonsense there.
    """

    def pick(name: str) -> Any:
        for source in (stored.get(name), getattr(task, name)):
            if source is not None:
                return source
        return getattr(defaults, name)

    backoff = pick("backoff")
    return Limits(
        max_attempts=pick("max_attempts"),
        backoff=backoff if isinstance(backoff, Backoff) else Backoff(**backoff),
        timeout=pick("timeout"),
    )


class TaskDecorator(Protocol):
    """What `task(...)` gives: makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R]: ...


class ContextTaskDecorator(Protocol):
    """What `task(takes_context=True)` gives: the function's first parameter is the executor's to fill."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> FunctionTask[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> FunctionTask[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | None = ...,
    retry_on: ExceptionClasses | None = ...,
    give_up_on: ExceptionClasses = ...,
    timeout: float | timedelta | None = ...,
    atomic: bool = ...,
    expires: datetime | timedelta | None = ...,
    name: str = ...,
) -> ContextTaskDecorator: ...
@overload
def task(
    *,
    takes_context: Literal[False] = ...,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | None = ...,
    retry_on: ExceptionClasses | None = ...,
    give_up_on: ExceptionClasses = ...,
    timeout: float | timedelta | None = ...,
    atomic: bool = ...,
    expires: datetime | timedelta | None = ...,
    name: str = ...,
) -> TaskDecorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """
    Declare a module-level function as a task; the options are those of FunctionTask.

    Works under any backend of Django's task framework; only ours obeys the options that Django lacks.
    """
    for option in options.keys() - DECLARED_OPTIONS:
        raise TypeError(f"task() takes no option {option!r}; it takes {', '.join(sorted(DECLARED_OPTIONS))}")

    def declare(func: Callable[..., Any]) -> FunctionTask[..., Any]:
        task_class = task_backends[backend].task_class
        chosen = task_class if issubclass(task_class, FunctionTask) else FunctionTask
        # Django 6.0's own fields have no defaults.
        return chosen(
            func=func,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **options,
        )

    return declare if function is None else declare(function)


DECLARED_OPTIONS = frozenset(
    {"max_attempts", "backoff", "retry_on", "give_up_on", "timeout", "atomic", "expires", "name"}
)

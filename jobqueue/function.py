"""@task: Django's Task with the options of a queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from asgiref.sync import sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from jobqueue.backoff import Backoff
from jobqueue.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    task_backends,
)
from jobqueue.conf import seconds
from jobqueue.task_options import as_classes, problems

P = ParamSpec("P")
R = TypeVar("R")
Call = tuple[Sequence[Any], Mapping[str, Any]]  # (args, kwargs)
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
    are one transaction. key: at most one live task of the backend has it. allow_http: whether HTTP may submit it.
    """

    name: str = ""
    run_after: datetime | timedelta | None = None  # type: ignore[assignment]
    max_attempts: int | None = None
    backoff: Backoff | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    atomic: bool = False
    allow_http: bool = False
    expires: datetime | timedelta | None = None
    key: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    # Derived: `name` where one was given. A copy made by using() must keep it.
    task_type: str = ""

    # super() does not know the class that dataclass(slots=True) makes anew: hence Task.__post_init__(self).
    def __post_init__(self) -> None:
        if not is_importable(self.func):
            raise InvalidTask(
                "Task function must be defined at a module level, by a def of its own, so that executors can import "
                f"it; not {self.func!r}."
            )
        object.__setattr__(self, "task_type", self.task_type or self.name or self.module_path)
        object.__setattr__(self, "name", self.name or self.func.__name__)
        object.__setattr__(self, "timeout", seconds(self.timeout))
        object.__setattr__(self, "retry_on", as_classes(self.retry_on))
        object.__setattr__(self, "give_up_on", as_classes(self.give_up_on) or ())
        for problem in problems(self):
            raise InvalidTask(f"{self.name!s:.200}: {problem}.")
        is_ours = issubclass(self.get_backend().task_class, FunctionTask)
        if isinstance(self.run_after, timedelta) and not is_ours:
            # Other backends know moments only.
            object.__setattr__(self, "run_after", timezone.now() + self.run_after)
        Task.__post_init__(self)
        declared.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _rebuild, (type(self), self.module_path, {**values, "func": None})

    def get_backend(self) -> BaseTaskBackend:
        """Give the backend. Raises InvalidTaskBackend when TASKS has none of that name."""
        return backend_named(self.backend)

    def _taker(self) -> BaseTaskBackend:
        """Give the backend that enqueue() hands the task to."""
        return self.get_backend()

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
        return cast("TaskResult[P, R]", self._taker().enqueue(self, args, kwargs))  # type: ignore[arg-type]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """See enqueue()."""
        return cast("TaskResult[P, R]", await self._taker().aenqueue(self, args, kwargs))  # type: ignore[arg-type]

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[P, R]]:
        """
        Add one task per (args, kwargs), all or none, one statement per thousand; results come in order.

        Raises InvalidArguments, which says which call it was.
        """
        backend = self._taker()
        enqueue_many = getattr(backend, "enqueue_many", None)
        if enqueue_many is None:  # another backend, say in a test
            return [backend.enqueue(self, args, kwargs) for args, kwargs in calls]  # type: ignore[arg-type]
        return cast("list[TaskResult[P, R]]", enqueue_many(self, calls))

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[P, R]]:
        """See enqueue_many()."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)


class Duplicate(NamedTuple):
    """A task_type that two functions were declared under. The first one keeps it."""

    task_type: str
    first: str
    second: str


class Declarations:
    """
    The tasks that this process has declared. `jobqueue.registry` is how other modules read them.

    generation: replaced after every declaration.
    """

    def __init__(self, tasks: Mapping[str, FunctionTask[..., Any]] | None = None) -> None:
        self.tasks: dict[str, FunctionTask[..., Any]] = dict(tasks or {})
        self.duplicates: set[Duplicate] = set()
        self.generation = object()

    def add(self, task: FunctionTask[..., Any]) -> None:
        """
        Store a task under its task_type, unless its function is declared already.

        A function of the same module and name replaces the earlier one, because its module was reloaded.
        """
        known = self.tasks.get(task.task_type)
        if known is None or (known.func is not task.func and known.module_path == task.module_path):
            self.tasks[task.task_type] = task
            self.generation = object()
        elif known.func is not task.func:
            self.duplicates.add(Duplicate(task.task_type, known.module_path, task.module_path))


declared = Declarations()


def backend_named(alias: str) -> BaseTaskBackend:
    """Give a backend of TASKS. Raises InvalidTaskBackend, with the names that there are."""
    known = list(task_backends)
    if alias not in known:
        raise InvalidTaskBackend(f"TASKS has no backend {alias!r}; it has {', '.join(map(repr, known)) or 'none'}.")
    return task_backends[alias]


def is_importable(func: Any) -> bool:
    """Whether executors can find a function by its module and name; Django lets a module's lambdas pass."""
    return inspect.isfunction(func) and "<" not in func.__qualname__  # <lambda>, <locals>


def _rebuild(cls: type[FunctionTask[P, R]], path: str, values: dict[str, Any]) -> FunctionTask[P, R]:
    found = import_string(path)
    return cls(**{**values, "func": found.func if isinstance(found, Task) else found})


def changed(task: FunctionTask[P, R], **values: Any) -> FunctionTask[P, R]:
    """Copy a task without the checks of a declaration: for rows whose queue TASKS may no longer name."""
    copy = object.__new__(type(task))
    for f in fields(task):
        object.__setattr__(copy, f.name, values[f.name] if f.name in values else getattr(task, f.name))
    return copy


class TaskDecorator(Protocol):
    """What `task(...)` gives: makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R]: ...


class ContextTaskDecorator(Protocol):
    """What `task(takes_context=True)` gives: the function's first parameter is the executor's to fill."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
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
    allow_http: bool = ...,
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
    allow_http: bool = ...,
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
        if options.get("name") == "":  # which stands for the dotted path from here on
            raise InvalidTask(f"{func.__name__}: name must be a text of 1 to 500 characters; leave it out for none.")
        task_class = backend_named(backend).task_class
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
    {"max_attempts", "backoff", "retry_on", "give_up_on", "timeout", "atomic", "allow_http", "expires", "name"}
)

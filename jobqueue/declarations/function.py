"""@task: Django's Task with the options of a queue."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime, timedelta
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import mail
from django.utils import timezone

from jobqueue.conf.compat import (
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
from jobqueue.declarations.limits import Concurrency, Debounce, OnConflict, Rate
from jobqueue.declarations.options import DERIVED, task_option_problems, unreadable
from jobqueue.declarations.routes import options_by_route, routes_of
from jobqueue.exceptions import InvalidArguments
from jobqueue.schedules.expressions import Cron, Every
from jobqueue.values.arguments import read_parameters
from jobqueue.values.backoff import Backoff
from jobqueue.values.text import did_you_mean, short_repr

MAIN = "__main__"

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


class CommonOptions(TypedDict, total=False):
    """Options of functions and actors."""

    name: str
    aliases: Collection[str]
    queue_name: str
    backend: str
    priority: int
    max_attempts: int | None
    backoff: Backoff | None
    retry_on: ExceptionClasses | None
    give_up_on: ExceptionClasses
    timeout: float | timedelta | None
    allow_http: bool
    schedule: Cron | Every | None
    tags: Collection[str]
    concurrency: Concurrency | None
    rate: Rate | None


class TaskOptions(CommonOptions, total=False):
    """Options of `@task`."""

    atomic: bool
    process: bool
    max_memory: int | None
    expires: datetime | timedelta | None


class CopyOptions(TypedDict, total=False):
    """Options of `using()` and of `schedule()`."""

    priority: int | None
    queue_name: str | None
    backend: str | None
    max_attempts: int | None
    backoff: Backoff | None
    timeout: float | timedelta | None
    key: str | None
    metadata: Mapping[str, Any] | None
    tags: Collection[str] | None
    concurrency: Concurrency | None
    rate: Rate | None


class ChangedOptions(CopyOptions, total=False):
    """Options of `using()`."""

    on_conflict: OnConflict | None
    unique_for: float | timedelta | None
    debounce: Debounce | None

    run_after: datetime | timedelta | None
    expires: datetime | timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTask(TaskOf[P, R], Generic[P, R]):
    """
    A function that executors run, with its options. None is the default of the backend's OPTIONS.

    It has more than 15 attributes because each option of a task is a field.
    """

    priority: int = DEFAULT_TASK_PRIORITY  # -100 to 100; a greater one starts earlier
    queue_name: str = DEFAULT_TASK_QUEUE_NAME  # the queue that executors claim it from
    backend: str = DEFAULT_TASK_BACKEND_ALIAS  # the alias in TASKS
    name: str = None  # type: ignore[assignment]  # the function's
    """The name in rows instead of the dotted path, so that the function can move."""
    aliases: tuple[str, ...] = ()
    """Earlier names, which rows and schedules have. The first one stays the name of its limits and its schedule."""
    # the earliest start, a datetime or a timedelta from the enqueue; None: at once
    run_after: datetime | timedelta | None = None  # type: ignore[assignment]
    max_attempts: int | None = None
    """The number of attempts, the first included."""
    backoff: Backoff | None = None  # waits between attempts
    retry_on: tuple[type[BaseException], ...] | None = None
    """Exceptions that are retried; None for all."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """Exceptions that are not retried, even if retry_on has them."""
    timeout: float | None = None
    """Seconds for one attempt."""
    atomic: bool = False
    """The function and its outcome are one transaction."""
    process: bool = False
    """The function runs in a child process."""
    max_memory: int | None = None
    """MiB of resident memory above which that process is killed; None for no limit."""
    allow_http: bool = False
    """Whether programs may submit the task over HTTP."""
    schedule: Cron | Every | None = field(default=None, hash=False)
    """When executors enqueue it without arguments. The schedule has the name that rows contain."""
    expires: datetime | timedelta | None = None
    """The latest start, a datetime or a timedelta from the enqueue."""
    key: str | None = None
    """A name that at most one live task of the backend has."""
    concurrency: Concurrency | None = None
    """How many tasks with the same key run at once."""
    rate: Rate | None = None
    """How many start in a period."""
    on_conflict: OnConflict = "keep"
    """What enqueue() does if a live task has the unique key: "keep" returns that task's result, "replace" gives the
    waiting task the new arguments, options and start, and "raise" raises DuplicateKey."""
    unique_for: float | timedelta | None = None
    """Seconds or a timedelta from the first call. A second call with unique_for inserts nothing during this time,
    even after the end of the task."""
    debounce: Debounce | None = None
    """Each call moves the start of the waiting task."""
    # a JSON object that the caller reads later; None: an empty one
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    tags: Collection[str] = ()
    """Words by which people find the task."""
    # Derived from `name`. A copy made by using() keeps it.
    task_type: str = ""
    # Why the declaration is invalid. Such a task cannot be enqueued.
    problem: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        try:
            self._prepare()
        except (InvalidTask, InvalidTaskBackend) as error:
            invalid_declarations.record(self, error)
        else:
            declare(self)

    # dataclass(slots=True) makes a second class, which super() does not know: hence Task.__post_init__(self).
    def _prepare(self) -> None:
        """Derive fields from others. Raises InvalidTask or InvalidTaskBackend for invalid options."""
        if not is_importable(self.func):
            raise InvalidTask(
                "Task function must be defined at a module level, by a def of its own, so that executors can import "
                f"it; not {self.func!r}."
            )
        name: str | None = self.name
        is_copy = bool(self.task_type)
        if name is None:
            object.__setattr__(self, "task_type", self.module_path)
            object.__setattr__(self, "name", self.func.__name__)
        object.__setattr__(self, "task_type", self.task_type or self.name)
        if not is_copy and (routes := routes_of(self.backend)):
            self._route(routes)
        if not self.give_up_on:
            object.__setattr__(self, "give_up_on", ())
        for option, derive in DERIVED.items():
            if (value := getattr(self, option)) is None:
                continue
            try:
                object.__setattr__(self, option, derive(value))
            except Exception as error:
                raise InvalidTask(f"{self.name!s:.200}: {unreadable(option, value, error)}.") from error
        for problem in task_option_problems(self):
            raise InvalidTask(f"{self.name!s:.200}: {problem}.")
        is_ours = issubclass(self.get_backend().task_class, FunctionTask)
        if isinstance(self.run_after, timedelta) and not is_ours:
            # Other backends take a datetime only.
            object.__setattr__(self, "run_after", timezone.now() + self.run_after)
        Task.__post_init__(self)

    def _route(self, routes: Any) -> None:
        """Set the options that ROUTES of the settings give the task. Raises InvalidTask."""
        names = (self.task_type, *(self.aliases if isinstance(self.aliases, Collection) else ()))
        try:
            options = options_by_route(routes, names)
        except Exception as error:
            raise InvalidTask(f"{self.name!s:.200}: its options in ROUTES cannot be read: {error}.") from error
        for option, value in options.items():
            object.__setattr__(self, option, value)

    @property
    def first_name(self) -> str:
        """The name of its limits and of its schedule, the same in the code before it was renamed."""
        return self.aliases[0] if self.aliases else self.task_type

    def raise_if_invalid(self) -> None:
        """Raise InvalidTask if the declaration is invalid. The system checks have reported it."""
        if self.problem:
            raise InvalidTask(self.problem)

    def get_backend(self) -> BaseTaskBackend:
        """Return the backend. Raises InvalidTaskBackend if TASKS has none of that name. Every enqueue calls it."""
        self.raise_if_invalid()
        return backend_named(self.backend)

    def using(self, **options: Unpack[ChangedOptions]) -> FunctionTask[P, R]:
        """
        Return a copy with other options. None leaves an option unchanged.

        run_after, expires: a datetime, or a timedelta from the enqueue by the database's clock. key: while a live task
        has it, enqueue() returns that task's result and adds nothing. on_conflict, unique_for and debounce change that.
        While Django loads the apps, a system check reports a mistake, and the copy cannot be enqueued.
        """
        if self.problem and not apps.ready:
            return self
        self.raise_if_invalid()
        if error := unknown_option("using()", "option", options, ChangedOptions):
            return invalid_declarations.placeholder_for(type(self), self.func, error)  # type: ignore[no-any-return]
        changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return replace(self, **changes)

    if TYPE_CHECKING:  # Django's own methods. Without stubs for django.tasks, mypy would not check their arguments.

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]: ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]: ...

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[P, R]]:
        """
        Insert a task for each (args, kwargs), all or none, a thousand with one statement. Return results in order.

        Raises InvalidArguments as enqueue() does. The error has the number of the call.
        """
        backend = self.get_backend()
        enqueue_many = getattr(backend, "enqueue_many", None)
        if enqueue_many is None:  # not a jobqueue backend
            return [backend.enqueue(self, args, kwargs) for args, kwargs in calls]  # type: ignore[arg-type]
        return cast("list[TaskResult[P, R]]", enqueue_many(self, calls))

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[P, R]]:
        """See enqueue_many()."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    def plan(self, *args: Any, **kwargs: Any) -> PlannedCall:
        """
        Plan a call for chain(), group(), chord() or a Batch. The result of what came before becomes its first argument.

        Raises InvalidArguments if the function takes these arguments neither after a result nor without one.
        """
        return PlannedCall(self, args, kwargs).check((), (RESULT,))

    def plan_only(self, *args: P.args, **kwargs: P.kwargs) -> PlannedCall:
        """Plan a call as plan() does, with these arguments only. Raises InvalidArguments if they do not fit."""
        return PlannedCall(self, args, kwargs, takes_result=False).check(())


RESULT = object()  # in the place of a result that is not known yet


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """
    A call of a task, to be made later: by a chain, a group, a chord or a batch, or by enqueue().

    The result of what came before is put in front of the arguments, unless it was made by plan_only().
    """

    task: FunctionTask[..., Any]  # with the options of using()
    args: tuple[Any, ...] = ()  # without the result of what came before
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the call
    takes_result: bool = True  # whether a result is put in front

    def using(self, **options: Unpack[ChangedOptions]) -> PlannedCall:
        """Return a copy with other options of the task, as FunctionTask.using()."""
        return replace(self, task=self.task.using(**options))

    def enqueue(self, *result: Any) -> TaskResult[..., Any]:
        """Enqueue the call in the caller's transaction. result: of what came before, none or one."""
        return self.task.enqueue(*self.arguments(*result), **self.kwargs)

    async def aenqueue(self, *result: Any) -> TaskResult[..., Any]:
        """See enqueue()."""
        return await self.task.aenqueue(*self.arguments(*result), **self.kwargs)

    def arguments(self, *result: Any) -> tuple[Any, ...]:
        """Return the positional arguments. result: of what came before, none or one."""
        return (*result, *self.args) if self.takes_result else self.args

    def check(self, *results: tuple[Any, ...]) -> PlannedCall:
        """Return the call. Raises InvalidArguments if it fits the function after none of these results."""
        self.task.raise_if_invalid()
        parameters = read_parameters(self.task.func, self.task.takes_context)
        problems = [parameters.problem(self.arguments(*result), self.kwargs) for result in results]
        if all(problems):
            is_given = bool(results[0]) and self.takes_result
            advice = " The result of what came before is its first argument; plan_only() leaves it out."
            raise InvalidArguments(f"{self.task.name}(): {problems[0]}.{advice if is_given else ''}")
        return self


declared: dict[str, FunctionTask[..., Any]] = {}
# Names of tasks in modules that Django imports only later than its setup, or never. Executors may not know them.
late: set[str] = set()
# Tasks of two functions with one task_type. The first one keeps it.
duplicates: list[tuple[str, FunctionTask[..., Any], FunctionTask[..., Any]]] = []  # with the name of both


def is_test() -> bool:
    """Return whether this process runs tests now. Their modules may declare tasks that no executor runs."""
    return hasattr(mail, "outbox")  # made by django.test.utils.setup_test_environment()


def declare(task: FunctionTask[..., Any]) -> None:
    """
    Store a declared task under its task_type and its aliases. Copies of it are not stored.

    A function of the same module and name replaces the earlier one, because its module was reloaded.
    """
    for name in (task.task_type, *task.aliases):
        first = declared.setdefault(name, task)
        if first is task and (apps.ready or task.func.__module__ == MAIN):
            late.add(task.task_type)
        if first.func is task.func:
            continue
        if first.module_path == task.module_path:
            declared[name] = task
        else:
            duplicates.append((name, first, task))


class InvalidDeclarations:
    """
    The invalid declarations that were found while Django loaded the apps, for the system checks.

    problems: by file and line. One wrong option does not end manage.py, which could then not report the others.
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def record(self, task: FunctionTask[..., Any], error: Exception) -> None:
        """Record an error and mark the task. Raises the error once the apps are loaded: the checks may have run."""
        if apps.ready:
            raise error
        location = location_of_caller()
        self.problems[location] = str(error).removesuffix(".")
        object.__setattr__(task, "problem", f"{self.problems[location]}. It is declared in {location}.")

    def placeholder_for(self, task_class: type[FunctionTask[..., Any]], func: Any, error: Exception) -> Any:
        """Return a task that cannot be enqueued, in place of one that cannot be made. Raises as record()."""
        task = object.__new__(task_class)
        for option in fields(task_class):
            value = option.default_factory() if option.default_factory is not MISSING else option.default
            object.__setattr__(task, option.name, value)
        object.__setattr__(task, "func", func)
        self.record(task, error)
        return task


invalid_declarations = InvalidDeclarations()
FRAMEWORK = {"jobqueue", "django", "django_tasks", "dataclasses"}


def location_of_caller() -> str:
    """Return the file and line that called this package, as Django and dataclasses.replace() may have done."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in FRAMEWORK:
        frame = frame.f_back
    return "an unknown file" if frame is None else relative(f"{frame.f_code.co_filename}:{frame.f_lineno}")


def relative(location: str) -> str:
    """Return a location below the folder of sys.path that it is in."""
    folders = [folder for folder in sys.path if folder and location.startswith(f"{folder}/")]
    return location.removeprefix(f"{max(folders, key=len)}/") if folders else location


def backend_named(alias: str) -> BaseTaskBackend:
    """Return a backend of TASKS. Raises InvalidTaskBackend, which lists the configured names."""
    if not issubclass(type(alias), str) or alias not in task_backends.settings:
        names = ", ".join(map(repr, task_backends)) or "none"
        raise InvalidTaskBackend(f"TASKS has no backend {short_repr(alias)}; it has {names}.")
    return task_backends[alias]


def is_importable(func: Any) -> bool:
    """Return whether executors can import a function by its module and name. Django accepts a module's lambdas."""
    return inspect.isfunction(func) and "<" not in func.__qualname__  # <lambda>, <locals>


def copy_unchecked(task: FunctionTask[P, R], **values: Any) -> FunctionTask[P, R]:
    """Copy a task without the checks of a declaration, because a row's queue may be gone from TASKS."""
    copy = object.__new__(type(task))
    for f in fields(task):
        object.__setattr__(copy, f.name, values[f.name] if f.name in values else getattr(task, f.name))
    return copy


def unknown_option(where: str, noun: str, options: Mapping[str, Any], options_type: type) -> TypeError | None:
    """Return an error for the first option that a TypedDict does not have, or None."""
    names = list(options_type.__annotations__)
    for option in options:
        if option not in names:
            meant = did_you_mean(option, names)
            return TypeError(f"{where} takes no {noun} {option!r}{meant}; it takes {', '.join(names)}")
    return None


class TaskDecorator(Protocol):
    """The decorator that `task(...)` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R]: ...


class ContextTaskDecorator(Protocol):
    """The decorator that `task(takes_context=True)` returns. The executor fills the function's first parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> FunctionTask[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionTask[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> FunctionTask[P, R]: ...
@overload
def task(*, takes_context: Literal[True], **options: Unpack[TaskOptions]) -> ContextTaskDecorator: ...
@overload
def task(*, takes_context: Literal[False] = ..., **options: Unpack[TaskOptions]) -> TaskDecorator: ...
def task(
    function: Callable[..., Any] | None = None, /, *, takes_context: bool = False, **options: Unpack[TaskOptions]
) -> Any:
    """
    Declare a module-level function as a task. FunctionTask describes the options.

    Works with every backend of Django's task framework. Only JobQueueBackend applies the options that Django lacks.
    """
    error = unknown_option("task()", "option", options, TaskOptions)
    if error and apps.ready:
        raise error

    def decorate(func: Callable[..., Any]) -> FunctionTask[..., Any]:
        if error:
            return invalid_declarations.placeholder_for(FunctionTask, func, error)  # type: ignore[no-any-return]
        try:
            task_class = backend_named(options.get("backend", DEFAULT_TASK_BACKEND_ALIAS)).task_class
        except InvalidTaskBackend as unknown:
            return invalid_declarations.placeholder_for(FunctionTask, func, unknown)  # type: ignore[no-any-return]
        declared_class: Any = task_class if issubclass(task_class, FunctionTask) else FunctionTask
        return declared_class(func=func, takes_context=takes_context, **options)  # type: ignore[no-any-return]

    return decorate if function is None else decorate(function)

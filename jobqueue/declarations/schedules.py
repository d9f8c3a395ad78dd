"""Schedules that code declares: `schedule()`, `@task(schedule=...)` and `class Reminder(Actor, schedule=...)`."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import CodeType
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast

import msgspec
from django.utils.translation import gettext_noop

from jobqueue.conf.compat import BaseTaskBackend, InvalidTaskBackend, Task
from jobqueue.declarations import registry
from jobqueue.declarations.actor import Actor, ActorTask
from jobqueue.declarations.function import ChangedOptions, CopyOptions, FunctionTask, backend_named, relative
from jobqueue.declarations.limits import UNIQUENESS, replaces_or_reserves
from jobqueue.exceptions import InvalidArguments
from jobqueue.schedules.expressions import EPOCH, MAX_INTERVAL, Cron, Every, ValueProblem, moment_problems
from jobqueue.schedules.planning import MAX_TICKS
from jobqueue.schedules.rows import expression_columns, to_row_time
from jobqueue.values import kinds
from jobqueue.values.policies import CatchUp, Overlap
from jobqueue.values.records import NewTask, is_internal
from jobqueue.values.text import did_you_mean

MAX_NAME = 200
MAX_JITTER = timedelta(days=1)
MAX_CATCH_UP = MAX_TICKS // 2


class OwnOptions(TypedDict, total=False):
    """Options of `schedule()` that tasks do not have."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    overlap: Literal["skip", "queue_one", "allow", "cancel_running"]
    catch_up: Literal["latest", "all", "none"]
    max_catch_up: int
    catch_up_window: float | timedelta | None
    jitter: float | timedelta
    starts_at: datetime | None
    ends_at: datetime | None


class ScheduleOptions(OwnOptions, CopyOptions, total=False):
    """Options of `schedule()`."""

    expires: timedelta | None


@dataclass(frozen=True)
class Declaration:
    """A schedule in code. The values may be of any type until problems() has passed."""

    name: str  # unique in its backend
    task: FunctionTask[..., Any]  # with the options of its tasks
    expression: Cron | Every  # when it is due
    location: str  # its file and line
    args: Sequence[Any] = ()  # of each task
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of each task
    overlap: str = Overlap.SKIP  # what happens to a tick while the task of the tick before is live
    catch_up: str = CatchUp.LATEST  # which missed ticks become tasks
    max_catch_up: int = 100  # for "all", how many missed ticks become tasks
    # how far back missed ticks become tasks, in seconds or a timedelta; None: no bound
    catch_up_window: float | timedelta | None = None
    jitter: float | timedelta = 0  # the longest delay from a tick to its task, in seconds or a timedelta
    starts_at: datetime | None = None  # no tick lies before it; None: no bound
    ends_at: datetime | None = None  # no tick lies after it; None: no end
    task_options: Mapping[str, Any] = field(default_factory=dict)  # those that differ from the declared task's
    code: CodeType | None = None  # the code that called schedule(); None if it is unknown

    @property
    def backend(self) -> str:
        return str(self.task_options.get("backend") or getattr(self.task, "backend", "default"))

    @property
    def is_ignored(self) -> bool:
        """Whether the backend has no schedules. Settings for tests often choose such a backend."""
        try:
            backend = backend_named(self.backend)
        except InvalidTaskBackend:
            return False
        return isinstance(self.task, Task) and not has_schedules(backend)

    @property
    def has_ticks(self) -> bool:
        """Whether there is a tick between starts_at and ends_at. Only for a declaration without problems."""
        tick = self.expression.next_after((self.starts_at or EPOCH) - timedelta(microseconds=1))
        return tick is not None and (self.ends_at is None or tick <= self.ends_at)

    def columns(self) -> dict[str, Any]:
        """Return the columns of the row. Raises ValueError, TypeError, InvalidTask or InvalidArguments."""
        return {
            "task_type": self.task.task_type,
            "new_task": msgspec.json.decode(msgspec.json.encode(self._template(self.task_options))),
            **expression_columns(self.expression),
            "starts_at": to_row_time(self.starts_at),
            "ends_at": to_row_time(self.ends_at),
            "jitter_seconds": kinds.plain(self.jitter) or 0.0,
            "overlap": Overlap(self.overlap).value,
            "catch_up": CatchUp(self.catch_up).value,
            "max_catch_up": self.max_catch_up,
            "catch_up_window_seconds": kinds.plain(self.catch_up_window),
            "declared_at": self.location,
            "retired_at": None,
        }

    def _template(self, task_options: Mapping[str, Any]) -> NewTask:
        task = self.task.using(**task_options)
        template = getattr(task.get_backend(), "template", None)
        if template is None:
            raise ValueError(f"the backend {task.backend!r} of its task is not a JobQueueBackend")
        return cast(NewTask, template(task, self.args, self.kwargs, is_declared=bool(self.location)))

    def problems(self) -> Iterator[ValueProblem]:
        """Yield what is wrong with it. A problem's field is a field of this class, its expression or its task."""
        # Any: a type checker may not have checked the caller.
        task, expression = cast("tuple[Any, Any]", (self.task, self.expression))
        if wrong := kinds.problem(self.name, kinds.text(MAX_NAME)):
            yield ValueProblem("name", f"its name {wrong}")
        if not isinstance(expression, Cron | Every):
            yield ValueProblem("expression", f"it needs a Cron or an Every, not {expression!r:.200}")
        else:
            yield from expression.problems()
        yield from self._option_problems()
        if isinstance(task, FunctionTask) and is_internal(task.task_type):
            yield ValueProblem("task", f"its task must be one of the site, not {task.task_type}")
        elif isinstance(task, FunctionTask):
            yield from self._task_problems()
        else:
            yield ValueProblem(
                "task", f"its task must be declared with jobqueue.task, or be an actor, not {task!r:.200}"
            )

    def _option_problems(self) -> Iterator[ValueProblem]:
        yield from self._kind_problems("overlap", kinds.one_of(*Overlap))
        yield from self._kind_problems("catch_up", kinds.one_of(*CatchUp))
        if self.catch_up == CatchUp.ALL and self.overlap != Overlap.ALLOW:
            text = gettext_noop("catch_up='all' needs overlap='allow', because the missed ticks run at the same time")
            yield ValueProblem("catch_up", text)
        yield from self._kind_problems("max_catch_up", kinds.whole(1, MAX_CATCH_UP))
        yield from self._kind_problems("jitter", _up_to(MAX_JITTER))
        yield from self._kind_problems("catch_up_window", _up_to(MAX_INTERVAL))
        wrong = [*moment_problems("starts_at", self.starts_at), *moment_problems("ends_at", self.ends_at)]
        yield from wrong
        if not wrong and self.starts_at and self.ends_at and self.ends_at < self.starts_at:
            text = gettext_noop("ends_at must not be earlier than starts_at, %(time)s")
            yield ValueProblem("ends_at", text, {"time": self.starts_at})

    def _kind_problems(self, name: str, kind: Any) -> Iterator[ValueProblem]:
        return (ValueProblem(name, wrong) for wrong in kinds.problems(name, getattr(self, name), kind))

    def _task_problems(self) -> Iterator[ValueProblem]:
        """Try each option of the task alone, and the arguments without the options that are wrong."""
        if self.task.run_after is not None or "run_after" in self.task_options:
            yield ValueProblem(
                "run_after", "its task must have no run_after, because the expression decides when it runs"
            )
        if isinstance(self.task_options.get("expires", self.task.expires), datetime):
            text = "expires of its task must be a timedelta, because all tasks after a fixed time would be expired"
            yield ValueProblem("expires", text)
        if replaces_or_reserves(self.task) or UNIQUENESS & self.task_options.keys():
            text = "its task must have no on_conflict, unique_for or debounce, because overlap decides about its ticks"
            yield ValueProblem("on_conflict", text)
        usable: dict[str, Any] = {}
        for option, value in self.task_options.items():
            if option not in ChangedOptions.__annotations__:
                yield ValueProblem(option, _unknown_option(option))
                continue
            if option in UNIQUENESS:
                continue
            try:
                self.task.using(**{option: value})
            except Exception as error:  # noqa: BLE001 - any error of a wrong value is the problem
                yield ValueProblem(option, str(error).removeprefix(f"{self.task.name}: ").removesuffix("."))
            else:
                usable[option] = value
        args, kwargs = cast("tuple[Any, Any]", (self.args, self.kwargs))
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            yield ValueProblem("args", f"args must be a list or a tuple, not {args!r:.100}")
        elif not isinstance(kwargs, Mapping):
            yield ValueProblem("kwargs", f"kwargs must be a dict, not {kwargs!r:.100}")
        else:
            yield from self._template_problems(usable)

    def _template_problems(self, task_options: Mapping[str, Any]) -> Iterator[ValueProblem]:
        try:
            self._template(task_options)
        except InvalidArguments as error:
            yield ValueProblem("args", str(error).removesuffix("."))
        except Exception as error:  # noqa: BLE001
            yield ValueProblem("task", str(error).removesuffix("."))


def _up_to(longest: timedelta) -> Any:
    """Return the kind of durations up to a length; None is one of them."""
    kind = kinds.between(0, longest.total_seconds(), "seconds or a timedelta,")
    return Annotated[Annotated[float, kind] | None, kinds.described(str(kind.description))]


def _unknown_option(option: str) -> str:
    names = ScheduleOptions.__annotations__
    meant = did_you_mean(option, names)
    return f"schedule() takes no option {option!r:.100}{meant}; options are {', '.join(names)}"


def has_schedules(backend: BaseTaskBackend) -> bool:
    """Return whether a backend of TASKS is a JobQueueBackend."""
    return hasattr(backend, "template")


declared: list[Declaration] = []  # by schedule()


def schedule(
    name: str,
    task: FunctionTask[..., Any] | type[Actor[Any]],
    expression: Cron | Every,
    **options: Unpack[ScheduleOptions],
) -> None:
    """
    Declare that executors enqueue a task at the ticks of an expression. Call it in a module that executors import.

    name: unique in the backend of the task. args, kwargs: of the task. overlap: what happens to a tick while the task
    of the last one is live: "skip" (default), "queue_one", "allow" or "cancel_running". catch_up: what happens to
    ticks missed while no executor was running: "latest" (default: the last one runs), "all" (at most `max_catch_up`,
    100 by default) or "none"; not further back than `catch_up_window`. jitter: the longest delay, in seconds or as a
    timedelta; each name has a fixed part of it. starts_at, ends_at: aware datetimes. Other keywords are those of
    `task.using()`. A mistake is a system check with the file and line of this call.
    """
    frame = sys._getframe(1)
    location = relative(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    own = {key: value for key, value in options.items() if key in OwnOptions.__annotations__}
    others = {key: value for key, value in options.items() if key not in own}
    is_actor = isinstance(task, type) and issubclass(task, Actor)
    function = cast("FunctionTask[..., Any]", getattr(task, "task", task) if is_actor else task)
    new = Declaration(name, function, expression, location, task_options=others, code=frame.f_code, **own)  # type: ignore[arg-type]
    # A module that is loaded again has new code, and declares again. A loop repeats the same code.
    declared[:] = [
        declaration for declaration in declared if declaration.location != location or declaration.code is frame.f_code
    ]
    declared.append(new)


def declarations() -> list[Declaration]:
    """Return the schedules that code declares. The one of a task's own `schedule` has the task's first name."""
    own = [task for task in registry.all().values() if task.schedule is not None]
    return declared + [
        Declaration(task.first_name, task, task.schedule, find_location(task))  # type: ignore[arg-type]
        for task in own
    ]


def duplicates() -> list[tuple[Declaration, Declaration]]:
    """Return the pairs of declarations with one name in one backend."""
    first: dict[tuple[str, str], Declaration] = {}
    pairs = [
        (first.setdefault((declaration.backend, str(declaration.name)), declaration), declaration)
        for declaration in declarations()
    ]
    return [(earlier, later) for earlier, later in pairs if earlier is not later]


def compute_digest(declarations: Iterable[Declaration]) -> str:
    """Return a digest that changes with the set of declarations."""
    columns = sorted(
        (declaration.name, msgspec.json.encode(declaration.columns(), enc_hook=str)) for declaration in declarations
    )
    return hashlib.blake2b(repr(columns).encode(), digest_size=8).hexdigest()


def find_location(task: FunctionTask[..., Any]) -> str:
    """Return the file and line of a declared task."""
    if not isinstance(task, ActorTask):
        code = inspect.unwrap(task.func).__code__
        return relative(f"{code.co_filename}:{code.co_firstlineno}")
    try:
        return relative(f"{inspect.getfile(task.actor)}:{inspect.getsourcelines(task.actor)[1]}")
    except (OSError, TypeError):  # without its source: in a shell, or installed without it
        return task.actor.__module__

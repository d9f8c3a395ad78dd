"""Schedules that code declares: `schedule()` and `@task(schedule=...)`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ParamSpec, cast

import msgspec

from jobqueue.conf import seconds
from jobqueue.function import FunctionTask
from jobqueue.schedules.expressions import Cron, Every
from jobqueue.schedules.planning import MAX_TICKS, CatchUp, Overlap
from jobqueue.schedules.rows import expression_columns, stored
from jobqueue.serialization.text import is_text

MAX_NAME = 200
MAX_JITTER = timedelta(days=1)
MAX_CATCH_UP = MAX_TICKS // 2
SCHEDULE_OPTIONS = frozenset(
    ("args", "kwargs", "overlap", "catch_up", "max_catch_up", "catch_up_window", "jitter", "starts_at", "ends_at")
)
P = ParamSpec("P")


@dataclass(frozen=True)
class Declaration:
    """A schedule in code. location: its file and line. The values may be of any type until problems() has passed."""

    name: str
    task: FunctionTask[..., Any]
    expression: Cron | Every
    location: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    overlap: str = Overlap.SKIP
    catch_up: str = CatchUp.LATEST
    max_catch_up: int = 100
    catch_up_window: float | timedelta | None = None
    jitter: float | timedelta = 0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backend(self) -> str:
        return str(self.task_options.get("backend") or getattr(self.task, "backend", "default"))

    def columns(self) -> dict[str, Any]:
        """Return the columns of the row. Raises ValueError, TypeError, InvalidTask or InvalidArguments."""
        task = self.task.using(**self.task_options)
        backend = task.get_backend()
        template = getattr(backend, "template", None)
        if template is None:
            raise ValueError(f"the backend {task.backend!r} of its task is not a JobQueueBackend")
        new_task = template(task, self.args, self.kwargs)
        return {
            "task_type": self.task.task_type,
            "new_task": msgspec.json.decode(msgspec.json.encode(new_task)),
            **expression_columns(self.expression),
            "starts_at": stored(self.starts_at),
            "ends_at": stored(self.ends_at),
            "jitter_seconds": seconds(self.jitter) or 0.0,
            "overlap": Overlap(self.overlap).value,
            "catch_up": CatchUp(self.catch_up).value,
            "max_catch_up": self.max_catch_up,
            "catch_up_window_seconds": seconds(self.catch_up_window),
            "declared_at": self.location,
            "retired_at": None,
        }

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, as sentences."""
        # Any: a type checker may not have checked the caller.
        task, expression = cast("tuple[Any, Any]", (self.task, self.expression))
        if not is_text(self.name, MAX_NAME):
            yield f"its name must be a text of 1 to {MAX_NAME} characters, not {self.name!r:.300}"
        if not isinstance(task, FunctionTask):
            yield f"its task must be declared with jobqueue.task or as an actor, not {task!r:.200}"
            return
        if not isinstance(expression, Cron | Every):
            yield f"it needs a Cron or an Every, not {expression!r:.200}"
            return
        if found := [*expression.problems(), *self._option_problems()]:
            yield from found
            return
        try:
            self.columns()
        except Exception as error:  # noqa: BLE001 - whatever a wrong value raises is the problem
            yield str(error).removesuffix(".")

    def _option_problems(self) -> Iterator[str]:
        yield from _choice_problems("overlap", self.overlap, Overlap)
        yield from _choice_problems("catch_up", self.catch_up, CatchUp)
        if self.catch_up == CatchUp.ALL and self.overlap != Overlap.ALLOW:
            yield "catch_up='all' needs overlap='allow': the missed ticks run side by side"
        if not isinstance(self.max_catch_up, int) or not 1 <= self.max_catch_up <= MAX_CATCH_UP:
            yield f"max_catch_up must be a whole number from 1 to {MAX_CATCH_UP}, not {self.max_catch_up!r:.100}"
        yield from _duration_problems("jitter", self.jitter, MAX_JITTER)
        yield from _duration_problems("catch_up_window", self.catch_up_window, timedelta.max)
        for name in ("starts_at", "ends_at"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                yield f"{name} must be a datetime with a time zone, not {value!r:.100}"
        if self.task.run_after is not None or "run_after" in self.task_options:
            yield "its task must have no run_after: the expression says when it runs"
        if isinstance(self.task_options.get("expires", self.task.expires), datetime):
            yield "expires of its task must be a timedelta: a datetime would expire all later tasks"


def _choice_problems(name: str, value: Any, choices: type[Overlap] | type[CatchUp]) -> Iterator[str]:
    if value not in [*choices]:
        yield f"{name} must be one of {', '.join(repr(str(choice)) for choice in choices)}, not {value!r:.100}"


def _duration_problems(name: str, value: Any, at_most: timedelta) -> Iterator[str]:
    if value is None:
        return
    is_number = isinstance(value, int | float | timedelta) and not isinstance(value, bool)
    if not is_number or not 0 <= (seconds(value) or 0.0) <= at_most.total_seconds():
        yield f"{name} must be seconds or a timedelta from 0 to {at_most}, not {value!r:.100}"


declared: list[Declaration] = []


def schedule(name: str, task: FunctionTask[P, Any], expression: Cron | Every, **options: Any) -> None:
    """
    Declare that executors enqueue a task at the ticks of an expression. Call it in an app's tasks.py or actors.py.

    name: unique in the backend of the task. args, kwargs: of the task. overlap: what happens to a tick while the task
    of the last one is live: "skip" (default), "queue_one", "allow" or "cancel_running". catch_up: what happens to
    ticks missed while no executor was running: "latest" (default: the last one runs), "all" (at most `max_catch_up`,
    100 by default) or "none"; not further back than `catch_up_window`. jitter: the longest delay, in seconds or as a
    timedelta; each name has a fixed part of it. starts_at, ends_at: aware datetimes. Other keywords are those of
    `task.using()`. A mistake is a system check with the file and line of this call.
    """
    frame = sys._getframe(1)
    declare(name, task, expression, f"{frame.f_code.co_filename}:{frame.f_lineno}", **options)


def declare(name: str, task: FunctionTask[P, Any], expression: Cron | Every, location: str, **options: Any) -> None:
    own = {key: options.pop(key) for key in [*options] if key in SCHEDULE_OPTIONS}
    new = Declaration(name, task, expression, _relative(location), task_options=options, **own)
    # A module that is loaded again declares again.
    declared[:] = [each for each in declared if each.location != new.location or each.name != new.name]
    declared.append(new)


def duplicates() -> list[tuple[Declaration, Declaration]]:
    """Return the pairs of declarations with one name in one backend."""
    first: dict[tuple[str, str], Declaration] = {}
    pairs = [(first.setdefault((each.backend, each.name), each), each) for each in declared]
    return [(one, other) for one, other in pairs if one is not other]


def digest_of(declarations: Iterable[Declaration]) -> str:
    """Return what tells one set of declarations from another."""
    columns = sorted((each.name, msgspec.json.encode(each.columns(), enc_hook=str)) for each in declarations)
    return hashlib.blake2b(repr(columns).encode(), digest_size=8).hexdigest()


def _relative(location: str) -> str:
    """Return a location below the folder of sys.path that it is in."""
    folders = [folder for folder in sys.path if folder and location.startswith(f"{folder}/")]
    return location.removeprefix(max(folders, key=len, default="")).lstrip("/")

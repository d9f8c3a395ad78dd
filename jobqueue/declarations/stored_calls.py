"""Planned calls as JSON, in the arguments of chains, groups and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypedDict

from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations import registry
from jobqueue.declarations.function import ChangedOptions, FunctionTask, PlannedCall
from jobqueue.declarations.limits import Concurrency, Debounce, Rate
from jobqueue.exceptions import UnknownTask
from jobqueue.values import kinds
from jobqueue.values.backoff import Backoff


class JsonCall(TypedDict):
    """A planned call as JSON."""

    task: str  # its task_type
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]  # those that using() has changed
    takes_result: bool


def encode_call(call: PlannedCall) -> JsonCall:
    """Return a call as JSON, its arguments unchanged. Raises InvalidTask for an option that no JSON can hold."""
    task = call.task
    declared = registry.get(task.task_type)
    values = {name: getattr(task, name) for name in ChangedOptions.__annotations__}
    changed = {name: v for name, v in values.items() if v is not None and v != getattr(declared, name)}
    return {
        "task": task.task_type,
        "args": [*call.args],
        "kwargs": {**call.kwargs},
        "options": {name: _option_as_json(task, name, value) for name, value in changed.items()},
        "takes_result": call.takes_result,
    }


def _option_as_json(task: FunctionTask[..., Any], option: str, value: Any) -> Any:
    if isinstance(value, Concurrency | Rate) and callable(value.key):
        raise InvalidTask(
            f"{task.name}: the key of its {option} is a function, which a planned call cannot store. Use a template "
            "such as 'account-{account_id}', or declare the limit with the task."
        )
    if isinstance(value, datetime):
        return value.isoformat()
    return kinds.plain(asdict(value) if isinstance(value, Concurrency | Rate | Debounce | Backoff) else value)


def decode_call(stored: JsonCall) -> PlannedCall:
    """Return the call of encode_call(). Raises UnknownTask if this process has no code for its task."""
    task = registry.get(stored["task"])
    if task is None:
        raise UnknownTask(f"This executor knows no task {stored['task']!r}, to be enqueued next. Deploy its code.")
    options: Any = {name: READERS.get(name, _same)(value) for name, value in stored["options"].items()}
    return PlannedCall(task.using(**options), tuple(stored["args"]), stored["kwargs"], stored["takes_result"])


def planned(call: Any) -> PlannedCall:
    """Return a planned call, also of a task or an actor without arguments. Raises TypeError for anything else."""
    task = getattr(call, "task", None) if isinstance(call, type) else call  # an actor class
    if isinstance(task, FunctionTask):
        return PlannedCall(task)
    if isinstance(call, PlannedCall):
        return call
    raise TypeError(f"A planned call is made by task.plan(...), not {call!r:.200}.")


def _same(value: Any) -> Any:
    return value


def _moment(value: float | str) -> datetime | timedelta:
    return datetime.fromisoformat(value) if isinstance(value, str) else timedelta(seconds=value)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "backoff": lambda value: Backoff(**value),
    "concurrency": lambda value: Concurrency(**value),
    "debounce": lambda value: Debounce(**value),
    "expires": _moment,
    "rate": lambda value: Rate(**value),
    "run_after": _moment,
}

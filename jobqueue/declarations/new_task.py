"""The rows of new tasks, made of the options of a task and the arguments of its calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from jobqueue.conf.options import Options
from jobqueue.declarations import registry
from jobqueue.declarations.function import Call, FunctionTask
from jobqueue.declarations.limits import limit_columns
from jobqueue.declarations.middleware import with_captured
from jobqueue.declarations.options import stored_options
from jobqueue.declarations.workflow import WorkflowTask
from jobqueue.exceptions import InvalidArguments
from jobqueue.values import kinds
from jobqueue.values.arguments import encode_arguments, read_parameters
from jobqueue.values.ids import new_id
from jobqueue.values.json import encode
from jobqueue.values.records import AlikeTasks, NewTask


def new_task(
    task: FunctionTask[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    *,
    where: str | None = None,
    columns: Mapping[str, Any] | None = None,
    **own: Any,
) -> NewTask:
    """
    Return the row of a call.

    options: of the backend. where: what errors call the task. columns: of shared_columns(), if the caller makes many
    rows. own: further columns of the row. Raises InvalidArguments.
    """
    args_text, kwargs_text = encode_arguments(
        task.func,
        args,
        kwargs,
        name=where or f"{task.name}()",
        takes_context=task.takes_context,
        max_bytes=options.max_payload_bytes,
    )
    if "id" not in own:
        own["id"] = new_id()
    if task.concurrency is not None or task.rate is not None:
        own |= limit_columns(task, read_parameters(task.func, task.takes_context), args, kwargs)
    if task.key is not None and isinstance(task, WorkflowTask):
        columns = {**(columns or shared_columns(task, options)), "key": task.key_of(args, kwargs)}
    return NewTask(args=args_text, kwargs=kwargs_text, **(columns or shared_columns(task, options)), **own)


def new_tasks(task: FunctionTask[..., Any], calls: Iterable[Call], options: Options, first: int = 0) -> list[NewTask]:
    """Return the rows of many calls. Raises InvalidArguments with the number of the call, counted from `first`."""
    columns = shared_columns(task, options)
    has_own_columns = task.concurrency is not None or task.rate is not None or isinstance(task, WorkflowTask)
    rows = [] if has_own_columns else AlikeTasks()
    for number, call in enumerate(calls, first):
        where = f"{task.name}(), call {number}"
        match call:
            case (list() | tuple() as args, dict() | Mapping() as kwargs):  # Mapping() alone takes a microsecond
                rows.append(new_task(task, args, kwargs, options, where=where, columns=columns))
            case _:
                raise InvalidArguments(f"{where}: must be a pair (args, kwargs), args a list or tuple, kwargs a dict")
    return rows


def shared_columns(task: FunctionTask[..., Any], options: Options) -> dict[str, Any]:
    """Return the columns that all rows of a task share."""
    columns: dict[str, Any] = {
        "task_type": task.task_type,
        "queue_name": task.queue_name,
        "pool": registry.pool_for(task.func),
        "priority": int(task.priority),
        "max_attempts": task.max_attempts or options.max_attempts,
        "options": stored_options(task, registry.get(task.task_type)),
        "key": task.key,
    }
    metadata = task.metadata
    if options.middleware:
        metadata = with_captured(metadata, options.middleware, task.name)
    if metadata is not None:
        limit = options.max_payload_bytes
        columns["metadata"] = encode(metadata, where=f"{task.name}(): metadata", max_bytes=limit)
    if task.tags:
        columns["tags"] = json.dumps(task.tags)
    if task.key is not None:
        columns |= _uniqueness(task)
    if task.run_after is not None:
        columns |= _moment("wake", task.run_after)
    if task.expires is not None:
        columns |= _moment("expires", task.expires)
    return columns


def _uniqueness(task: FunctionTask[..., Any]) -> dict[str, Any]:
    """Return the columns that say what to do if the key is taken."""
    columns: dict[str, Any] = {"on_conflict": task.on_conflict}
    if task.unique_for is not None:
        columns["unique_for_seconds"] = float(kinds.plain(task.unique_for))
    if task.debounce is not None:
        columns |= {"on_conflict": "replace", "wake_after_seconds": task.debounce.wait_seconds}
        columns["max_wait_seconds"] = task.debounce.max_wait_seconds
    return columns


def _moment(name: str, value: datetime | timedelta) -> dict[str, Any]:
    if isinstance(value, timedelta):
        return {f"{name}_after_seconds": value.total_seconds()}
    return {f"{name}_at": value}

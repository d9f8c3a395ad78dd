"""Which backend has a task, and the rows of children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from jobqueue.declarations.backends import aliases
from jobqueue.declarations.function import FunctionTask
from jobqueue.engine import Engine, engine_for
from jobqueue.exceptions import TaskNotFound
from jobqueue.values.records import NewTask

BATCH = 1000  # ids per statement


def child_row(
    task: FunctionTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, pk: UUID, parent: UUID
) -> NewTask:
    """Make the row of a child in its task's backend, without inserting it. Raises as enqueue() does."""
    backend: Any = task_backends[task.backend]  # a JobQueueBackend, whose module imports this package
    row: NewTask = backend.new_row(task, args, kwargs, id=pk, parent_id=parent)
    return row


def group_by_backend(
    ids: Iterable[UUID | str] | UUID | str, backend: str | None
) -> Iterator[tuple[Engine, list[UUID]]]:
    """
    Group ids by the backend that has them, in batches. Unknown ids go to the last backend.

    The default backend comes first. Other databases are asked only for ids not found yet: a TestCase may forbid them.
    """
    names = sorted(aliases(), key=lambda alias: alias != DEFAULT_TASK_BACKEND_ALIAS) if backend is None else [backend]
    *others, last = names or [DEFAULT_TASK_BACKEND_ALIAS]
    for batch in batches(ids):
        left = list(dict.fromkeys(batch))
        for engine in map(engine_for, others):
            stored = set(engine.db.by_ids(left).values_list("pk", flat=True)) if left else set()
            if stored:
                yield engine, [pk for pk in left if pk in stored]
            left = [pk for pk in left if pk not in stored]
        if left:
            yield engine_for(last), left


def batches(ids: Iterable[UUID | str] | UUID | str) -> Iterator[list[UUID]]:
    try:
        numbers = iter([ids] if isinstance(ids, UUID | str) else ids)
    except TypeError:
        raise TypeError(f"ids are UUIDs, as in TaskResult.id, one or an iterable of them; not {ids!r:.200}") from None
    while batch := [uuid_of(value) for value in islice(numbers, BATCH)]:
        yield batch


def uuid_of(value: UUID | str) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise TaskNotFound(f"{value!r:.200} is not the id of a task; ids are UUIDs, as in TaskResult.id.") from error

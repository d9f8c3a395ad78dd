"""`requeue` and `cancel`: tasks by id, or all tasks of a filter, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from django.core.management.base import CommandError

from jobqueue.cli.audit import list_ids, log
from jobqueue.cli.backends import check_queue_name, engine_of
from jobqueue.cli.console import Console, UsageError
from jobqueue.cli.progress import progress
from jobqueue.cli.tables import many
from jobqueue.engine.engine import Engine
from jobqueue.inspect.bulk import CANCEL_TREE, Bounds, BulkAction, BulkRun, Preview, batches
from jobqueue.inspect.queries import CAP, ORDER, Count, of_status, walk
from jobqueue.inspect.task_filter import TaskFilter
from jobqueue.records import Status

MAX_READ = 100_000  # rows read for a preview
DEFAULT_STATUSES = {
    "requeue": (Status.FAILED,),
    # The order in which tasks move on: a task that changes its status during the command is still found.
    "cancel": (Status.SCHEDULED, Status.SUSPENDED, Status.READY, Status.RUNNING),
}


def perform(
    console: Console,
    *,
    action: BulkAction,
    ids: Sequence[UUID],
    status: Sequence[Status],
    task: Sequence[str],
    queue: Sequence[str],
    backend: str | None,
    limit: int | None,
    batch: int,
    dry_run: bool,
    yes: bool,
    descendants: bool = False,
) -> None:
    """Perform an action on tasks. Raises CommandError if ids were given and no task was changed."""
    if bool(ids) == bool(status or task or queue):
        raise UsageError("Pass either task ids or filters (--status, --task, --queue).")
    if ids and (dry_run or limit is not None):
        raise UsageError("--dry-run and --limit need filters instead of task ids.")
    action = CANCEL_TREE if descendants else action
    if ids:
        _perform_ids(console, BulkRun(action, backend), ids)
        return
    engine = engine_of(backend)
    task_filter = TaskFilter(tuple(dict.fromkeys(status)) or DEFAULT_STATUSES[action.name], tuple(queue), tuple(task))
    preview = _preview(engine, task_filter, limit)
    if not preview.matching:
        for name in queue:
            check_queue_name(engine, name)
    expected = f"{many(preview.matching, 'task')} ({task_filter})"
    if dry_run:
        fields = {"would_change": preview.matching.number, "is_more": preview.matching.is_more}
        console.report(fields, f"Would {action.name} {expected}.")
        return
    if preview.matching:
        console.confirm(f"{action.name.capitalize()} {expected}?", is_confirmed=yes)
    run = BulkRun(action, engine.alias)
    try:
        with progress(console, action.participle, preview.matching) as work:
            for ids_of_batch in _batches(engine, task_filter, preview.bounds, batch, limit):
                run.perform(ids_of_batch)
                if work.add(len(ids_of_batch)):
                    break
    finally:  # also after an error, or a second Ctrl-C
        log(action.name, tasks=str(task_filter), backend=engine.alias, **action.as_json(run.result))
    console.report(action.as_json(run.result), str(run))
    work.raise_if_stopped()


def _perform_ids(console: Console, run: BulkRun, ids: Sequence[UUID]) -> None:
    if run.backend is not None:
        engine_of(run.backend)
    run.perform(ids)
    log(run.action.name, ids=list_ids(ids), **run.action.as_json(run.result))
    console.report(run.action.as_json(run.result), str(run))
    if not run.result.affected:
        raise CommandError("No task was changed.")


def _preview(engine: Engine, task_filter: TaskFilter, limit: int | None) -> Preview:
    """Count what will be changed: exactly up to CAP, unless MAX_READ rows were read first."""
    bounds = Bounds.now(engine.database)
    found = read = 0
    maximum = CAP if limit is None else min(CAP, limit)
    for rows, ids in _walk(engine, task_filter, bounds):
        read, found = read + rows, found + len(ids)
        if found > maximum or read >= MAX_READ:
            is_limit = limit is not None and found >= limit
            return Preview(matching=Count(min(found, maximum), is_more=not is_limit), bounds=bounds)
    return Preview(matching=Count(min(found, maximum)), bounds=bounds)


def _batches(
    engine: Engine, task_filter: TaskFilter, bounds: Bounds | None, size: int, limit: int | None
) -> Iterator[Sequence[UUID]]:
    left = limit
    for _, ids in _walk(engine, task_filter, bounds):
        chosen = ids[:left]
        yield from batches(chosen, size)
        left = None if left is None else left - len(chosen)
        if left == 0:
            return


def _walk(engine: Engine, task_filter: TaskFilter, bounds: Bounds | None) -> Iterator[tuple[int, list[UUID]]]:
    """Walk the tasks within the bounds. A task that fails again while the command runs is not requeued twice."""
    if bounds is None:
        return
    for status in task_filter.statuses:
        rows = of_status(engine, status).filter(bounds.condition_of(status))
        yield from walk(rows, ORDER[status], task_filter)

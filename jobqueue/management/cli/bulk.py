"""`requeue`, `cancel` and `prune`: tasks by id, or all tasks of a filter, in batches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from jobqueue.engine import Engine, clock_to_compare
from jobqueue.management.cli import arguments
from jobqueue.management.cli.backends import find_engine, report_unknown
from jobqueue.management.cli.console import EXIT_INTERRUPTED, Console, list_ids, log
from jobqueue.management.cli.task_filters import add_filters, add_status, describe_filters, moment_text, read_filters
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.bulk.actions import CANCEL, CANCEL_TREE, REQUEUE, BulkAction
from jobqueue.operations.bulk.actor import MAX_RATE
from jobqueue.operations.bulk.target import BulkRun, Target
from jobqueue.operations.formatting import duration
from jobqueue.operations.list.failures import MAX_CAUSES, TooManyCauses, causes_with, newest_causes, read_failures
from jobqueue.operations.list.selection import Selection
from jobqueue.operations.queries import many, tasks_with_status
from jobqueue.values.states import FINAL, Status

CAUSES_NAMED = 5  # if none matches


def add_requeue_arguments(parser: CommandParser) -> None:
    _add_bulk(parser, REQUEUE.statuses)
    failed = "the same as --status FAILED"
    parser.add_argument("--failed", action="append_const", dest="status", const=Status.FAILED, help=failed)
    error = "failed tasks whose error class and message contain this text, or with this cause"
    parser.add_argument("--error", metavar="TEXT", help=error)
    since = "tasks that ended in this time, such as 2h"
    parser.add_argument("--since", type=arguments.parse_duration, metavar="TIME", help=since)
    parser.add_argument("--rate", type=arguments.within(1, MAX_RATE), metavar="N", help="at most N tasks a second")


def add_cancel_arguments(parser: CommandParser) -> None:
    _add_bulk(parser, CANCEL.statuses)
    parser.add_argument("--descendants", action="store_true", help="also cancel children, and their children")


def add_prune_arguments(parser: CommandParser) -> None:
    age = "delete tasks that ended longer ago, such as 14d or 12h"
    parser.add_argument("--older-than", type=arguments.parse_duration, required=True, metavar="TIME", help=age)
    add_status(parser, FINAL)
    _add_confirmation(parser, max_batch=100_000, batch=5000)


def _add_bulk(parser: CommandParser, statuses: Iterable[Status]) -> None:
    parser.add_argument("ids", nargs="*", type=UUID, metavar="ID", help="task id")
    add_filters(parser, statuses)
    parser.add_argument("--tag", default="", metavar="TAG", help="tasks with this tag")
    limit = "change at most this number of tasks"
    parser.add_argument("--limit", type=arguments.within(1, 1_000_000_000), help=limit)
    _add_confirmation(parser, max_batch=10_000, batch=1000)


def _add_confirmation(parser: CommandParser, *, max_batch: int, batch: int) -> None:
    arguments.add_questions(parser)
    text = f"tasks per transaction ({batch:,})"
    parser.add_argument("--batch", type=arguments.within(1, max_batch), default=batch, help=text)


def run_bulk_action(action: BulkAction, console: Console, flags: Any) -> None:
    """Perform an action on tasks. Raises CommandError if ids were given and no task was changed."""
    error, since = getattr(flags, "error", None), getattr(flags, "since", None)
    if bool(flags.ids) == bool(flags.status or flags.task or flags.queue or flags.tag or error or since):
        names = "--status, --task, --queue, --tag" + (", --error, --since" if action is REQUEUE else "")
        flags.parser.error(f"Pass either task ids or filters ({names}).")
    if error and {*flags.status} - {Status.FAILED}:
        flags.parser.error("--error needs the status FAILED: only failed tasks are grouped by their errors.")
    if flags.ids and (flags.dry_run or flags.limit is not None):
        flags.parser.error("--dry-run and --limit need filters instead of task ids.")
    engine = find_engine(flags.backend)
    if getattr(flags, "descendants", False):
        action = CANCEL_TREE
    if not flags.ids:
        _perform_matching(console, flags, BulkRun(action, engine.alias), engine)
        return
    run = BulkRun(action, flags.backend)
    run.perform(flags.ids)
    log(action.name, ids=list_ids(flags.ids), **run.numbers)
    console.report(run.numbers, str(run))
    if not run.affected:
        raise CommandError("No task was changed.")


def _perform_matching(console: Console, flags: Any, run: BulkRun, engine: Engine) -> None:
    name = run.action.name
    since, error = getattr(flags, "since", None), getattr(flags, "error", None)
    filters = read_filters(
        flags,
        engine.database,
        backend=engine.alias,
        cause=",".join(_causes(engine, error)) if error else "",
        ended_since=moment_text(engine, since) if since else "",
    )
    if run.action is REQUEUE:
        filters.setdefault("status", str(Status.FAILED))
    # Tasks that enter later are not changed. So a task that fails again is not requeued twice.
    target = Target.of(Selection(engine.database, filters, is_whole=True), run.action)
    number = target.bounds.number or 0
    number = number if flags.limit is None else min(number, flags.limit)
    report_unknown(console, [engine.database], flags.queue, flags.task, has_rows=bool(number))
    tasks = describe_filters(flags, target.statuses, filters)
    expected = f"{many(number, 'task')} ({tasks})"
    if flags.dry_run:
        console.report({"would_change": number}, f"Would {name} {expected}.")
        return
    if number:
        console.confirm(f"{name.capitalize()} {expected}?", is_confirmed=flags.yes)

    def perform_batches() -> Iterator[int]:
        left, rate = number, getattr(flags, "rate", None)
        for ids in target.walk(min(flags.batch, rate or flags.batch)) if number else ():
            batch = ids[:left]
            run.perform(batch)
            left -= len(batch)
            yield len(batch)
            if rate:
                time.sleep(len(batch) / rate)
            if not left:
                break
        run.moved = left

    logged = {"tasks": tasks, "backend": engine.alias}
    _run(console, name, logged, perform_batches(), number, lambda: run.numbers, partial(str, run))


def _causes(engine: Engine, text: str) -> list[str]:
    """Return the causes of failures that a text names. Raises CommandError without any."""
    try:
        causes = causes_with(engine, text)
    except TooManyCauses as error:
        raise CommandError(str(error)) from error
    if causes:
        return causes
    frequent = read_failures(engine, newest_causes(engine)[:MAX_CAUSES], with_payload=True)[:CAUSES_NAMED]
    listed = "; ".join(failure.title for failure in frequent) or "none"
    raise CommandError(f"No failed task has the error {text!r}. The most frequent errors: {listed}.")


def prune(console: Console, flags: Any) -> None:
    """Delete tasks of the statuses, by default of all final ones, that ended longer ago than `older_than`."""
    engine = find_engine(flags.backend)
    statuses = tuple(dict.fromkeys(flags.status)) or FINAL
    age = flags.older_than.total_seconds()
    ended = f"that ended more than {duration(flags.older_than)} ago"
    old = {
        status: tasks_with_status(engine, status).filter(finished_at__lte=clock_to_compare(after=-age))
        for status in statuses
    }
    expected = {status.lower(): rows.count() for status, rows in old.items()}
    total = sum(expected.values())
    if flags.dry_run:
        console.report(expected, f"Would delete {many(total, 'task')} {ended}{_parts(expected)}.")
        return
    if total:
        question = f"Delete {many(total, 'task')} {ended} (status {' or '.join(statuses)})? This cannot be undone."
        console.confirm(question, is_confirmed=flags.yes)
    deleted = Counter(dict.fromkeys(expected, 0))

    def delete_batches() -> Iterator[int]:
        for status in statuses:
            left = expected[status.lower()]  # others grow old during the command
            while left:
                size = min(flags.batch, left)
                count = engine.tasks.prune_status(status, age, size)
                deleted[status.lower()] += count
                yield count
                left = left - count if count == size else 0

    def text() -> str:
        return f"Deleted {many(deleted.total(), 'task')} {ended}{_parts(deleted)}."

    logged = {"older_than": duration(flags.older_than), "backend": engine.alias}
    _run(console, "prune", logged, delete_batches(), total, lambda: deleted, text)


def _parts(numbers: Mapping[str, int]) -> str:
    parts = ", ".join(f"{number:,} {status}" for status, number in numbers.items() if number)
    return parts and f": {parts}"


def _run(
    console: Console,
    verb: str,
    logged: Mapping[str, object],
    batches: Iterable[int],
    expected: int,
    done: Callable[[], Mapping[str, int]],
    text: Callable[[], str],
) -> None:
    """Run batches until the last one or Ctrl-C. Log and report what was done."""
    try:
        is_interrupted = console.progress(batches, verb, expected)
    finally:  # also after an error, or a second Ctrl-C
        log(verb, **logged, **done())
    console.report(done(), text())
    if is_interrupted:
        raise CommandError("Interrupted. Run the command again to continue.", returncode=EXIT_INTERRUPTED)


VERBS = (
    Verb(
        "requeue",
        "Requeue failed or cancelled tasks with a fresh set of attempts.",
        partial(run_bulk_action, REQUEUE),
        add_requeue_arguments,
    ),
    Verb(
        "cancel",
        "Cancel unfinished tasks; running ones are asked to stop.",
        partial(run_bulk_action, CANCEL),
        add_cancel_arguments,
    ),
    Verb("prune", "Delete tasks that ended long ago.", prune, add_prune_arguments),
)

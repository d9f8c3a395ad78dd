"""`requeue` and `cancel`: tasks by their ids, or all that are chosen, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from jobqueue import api
from jobqueue.api.backends import BATCH
from jobqueue.cli.audit import note, some
from jobqueue.cli.backends import check_queue_name, engine_of
from jobqueue.cli.console import Console
from jobqueue.cli.progress import Progress, progress
from jobqueue.engine.base import Engine
from jobqueue.inspect.queries import CAP, ORDER, of_status, walk
from jobqueue.inspect.stats import Count
from jobqueue.inspect.task_filter import Choice
from jobqueue.records import FINAL, LIVE, CancelReport, RequeueReport, Status

LOOKED = 100_000  # rows looked at for a forecast

Perform = Callable[..., RequeueReport | CancelReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing to do to tasks. words: of a report's fields, in the order in which they are said."""

    name: str
    done: str
    statuses: tuple[Status, ...]
    default: tuple[Status, ...]
    perform: Perform
    words: Mapping[str, str]


REQUEUE = Deed(
    name="requeue",
    done="requeued",
    statuses=(Status.FAILED, Status.CANCELLED),
    default=(Status.FAILED,),
    perform=api.requeue,
    words={
        "requeued": "requeued",
        "key_taken": "left alone: a live task holds the same key",
        "skipped": "skipped: not FAILED or CANCELLED, or not there",
        "busy": "left: locked by another transaction",
    },
)
CANCEL = Deed(
    name="cancel",
    done="cancelled",
    statuses=LIVE,
    default=(Status.SCHEDULED, Status.SUSPENDED, Status.READY, Status.RUNNING),  # as tasks go on their way
    perform=api.cancel,
    words={
        "cancelled": "cancelled",
        "requested": "running: told to stop",
        "skipped": "skipped: ended already, or not there",
        "busy": "left: locked by another transaction",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asks for. Raises CommandError where that is nothing, or both ids and a choice."""

    deed: Deed
    ids: Sequence[UUID]
    choice: Choice
    backend: str | None = None
    limit: int | None = None
    batch: int = BATCH
    tree: bool = False
    is_dry: bool = False
    is_sure: bool = False

    def __post_init__(self) -> None:
        if bool(self.ids) == bool(self.choice):
            flags = "--failed, --status, --task, --queue" if self.deed is REQUEUE else "--status, --task, --queue"
            raise CommandError(f"Name tasks by their ids, or choose them with {flags}; not both.")
        if self.ids and (self.is_dry or self.limit is not None):
            raise CommandError("--dry-run and --limit are for tasks that are chosen, not named.")

    @property
    def chosen(self) -> Choice:
        return replace(self.choice, statuses=self.choice.statuses or self.deed.default)

    @property
    def options(self) -> dict[str, Any]:
        return {"tree": True} if self.tree else {}


def perform(console: Console, request: Request) -> None:
    """Do it, and say what became of the tasks; exit code 1 where ids were named and none of them was changed."""
    tally: Counter[str] = Counter()
    if request.ids:
        if request.backend is not None:
            engine_of(request.backend)
        _count(tally, request.deed.perform(request.ids, backend=request.backend, **request.options))
        note(request.deed.name, ids=some(request.ids), **tally)
        _report(console, request.deed, tally)
        if not any(tally[word] for word in ("requeued", "cancelled", "requested")):
            raise CommandError("No task was changed.")
        return
    engine = engine_of(request.backend)
    expected = _forecast(engine, request)
    may_be_some = bool(expected.number) or expected.is_more
    if not may_be_some:
        for name in request.choice.queues:
            check_queue_name(engine, name)
    if request.is_dry:
        _report_dry(console, request, expected)
        return
    if may_be_some:
        console.confirm(f"{request.deed.name.capitalize()} {expected} {request.chosen}?", is_sure=request.is_sure)
    total = None if expected.is_more else expected.number
    try:
        with progress(console, request.deed.done, total) as work:
            _perform_chosen(engine, request, tally, work)
    finally:  # also of what was done before an error, or a second Ctrl-C
        note(request.deed.name, tasks=str(request.chosen), backend=engine.alias, **tally)
    _report(console, request.deed, tally)
    work.raise_if_stopped()


def _perform_chosen(engine: Engine, request: Request, tally: Counter[str], work: Progress) -> None:
    do = partial(request.deed.perform, backend=engine.alias, **request.options)
    left = request.limit
    for _, ids in _chosen(engine, request):
        for start in range(0, len(ids), request.batch):
            batch = ids[start : start + request.batch][:left]
            if work.is_stopped or not batch:
                return
            _count(tally, do(batch))
            work.add(len(batch))
            left = None if left is None else left - len(batch)
        if work.is_stopped:
            return


def _chosen(engine: Engine, request: Request) -> Iterator[tuple[int, list[UUID]]]:
    """Walk the tasks that were there when we began: one that fails again meanwhile is not requeued twice."""
    now = engine.now()
    newest = engine.tasks.order_by("-pk").values_list("pk", flat=True).first()
    if newest is None:
        return
    for status in request.chosen.statuses:
        yield from walk(_before(engine, status, now, newest), ORDER[status], request.choice)


def _before(engine: Engine, status: Status, now: datetime, newest: UUID) -> Any:
    rows = of_status(engine, status)
    return rows.filter(finished_at__lte=now) if status in FINAL else rows.filter(pk__lte=newest)


def _forecast(engine: Engine, request: Request) -> Count:
    """Count what will be done, exactly up to CAP and as far as LOOKED rows tell."""
    found = looked = 0
    most = CAP if request.limit is None else min(CAP, request.limit)
    for seen, ids in _chosen(engine, request):
        looked, found = looked + seen, found + len(ids)
        if found > most or looked >= LOOKED:
            is_limit = request.limit is not None and found >= request.limit
            return Count(min(found, most), is_more=not is_limit)
    return Count(min(found, most))


def _count(tally: Counter[str], report: RequeueReport | CancelReport) -> None:
    match report:
        case RequeueReport():
            tally.update(requeued=report.requeued, key_taken=report.key_taken)
        case CancelReport():
            tally.update(cancelled=report.cancelled, requested=report.requested)
    tally.update(skipped=report.skipped, busy=len(report.busy))


def _report(console: Console, deed: Deed, tally: Counter[str]) -> None:
    if console.is_json:
        console.write_json({field: tally[field] for field in deed.words})
        return
    parts = [f"{tally[field]:,} {words}" for field, words in deed.words.items() if tally[field]]
    console.write(", ".join(parts) or "No task matched.")


def _report_dry(console: Console, request: Request, expected: Count) -> None:
    if console.is_json:
        console.write_json({"would_change": expected.number, "is_more": expected.is_more})
        return
    console.write(f"Would {request.deed.name} {expected} {request.chosen}.")

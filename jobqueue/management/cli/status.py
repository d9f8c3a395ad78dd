"""`status`: queues, executors, and what ended in the last minute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobqueue.engine import Count, Engine
from jobqueue.management.cli.arguments import parse_duration, within
from jobqueue.management.cli.backends import engines
from jobqueue.management.cli.console import Console, TableColumn
from jobqueue.management.cli.queues import queue_as_json
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.executors import ExecutorState, ExecutorStats
from jobqueue.operations.formatting import duration, served
from jobqueue.operations.overview.stats import BackendStats, QueueStats, count_ended, read_stats
from jobqueue.operations.queries import many
from jobqueue.values.states import FINAL, LIVE, Status

MINUTE_SECONDS = 60.0
EXECUTORS = (
    TableColumn("EXECUTOR", is_flexible=True),
    TableColumn("STATE"),
    TableColumn("THREADS", is_right=True),
    TableColumn("ASYNC", is_right=True),
    TableColumn("QUEUES", is_flexible=True),
    TableColumn("HOST", is_flexible=True),
    TableColumn("LAST HEARTBEAT", is_right=True),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a backend."""

    stats: BackendStats  # of its queues and executors
    totals: Mapping[Status, Count]  # the stored tasks by status
    last_minute: Mapping[Status, Count]  # those that ended within a minute

    @classmethod
    def of(cls, engine: Engine) -> Report:
        stats = read_stats(engine)
        return cls(stats, {**stats.totals, **count_ended(engine)}, count_ended(engine, MINUTE_SECONDS))


def add_arguments(parser: CommandParser) -> None:
    latency = "exit with 1 if a queue has a larger latency, such as 5m"
    parser.add_argument("--max-latency", type=parse_duration, metavar="TIME", help=latency)
    few = "exit with 1 if fewer executors are active"
    parser.add_argument("--min-executors", type=within(1, 1000), metavar="N", help=few)


def status(console: Console, flags: Any) -> None:
    """Show the figures of every backend. Raises CommandError, exit code 1, if they exceed a flag's bound."""
    reports = [Report.of(engine) for engine in engines(flags.backend)]
    backends = [report.stats for report in reports]
    if console.is_json:
        console.write_json({"backends": [_as_json(report) for report in reports]})
    else:
        for index, report in enumerate(reports):
            if index:
                console.write()
            if len(reports) > 1:
                console.write(f"Backend {report.stats.backend}")
            _show(console, report)
    if problems := list(_problems(backends, flags.max_latency, flags.min_executors)):
        raise CommandError(" ".join(problems))


def _problems(
    backends: Sequence[BackendStats], max_latency: timedelta | None, min_executors: int | None
) -> Iterator[str]:
    if max_latency is not None:
        for queue in (queue for stats in backends for queue in stats.queues):
            if (queue.latency or 0.0) > max_latency.total_seconds():
                yield f"Queue {queue.name} has a latency of {queue.latency_text}, more than {duration(max_latency)}."
    alive = sum(len(stats.alive) for stats in backends)
    if min_executors is not None and alive < min_executors:
        yield f"{many(alive, 'executor')} active, fewer than {min_executors}."


def _show(console: Console, report: Report) -> None:
    stats = report.stats
    # Rare ones are left out, so that the table fits 80 columns.
    rare = {status for status in (Status.BLOCKED, Status.AWAITING_CODE) if not stats.totals[status]}
    columns = [status for status in (*LIVE, Status.FAILED) if status not in rare]
    titles = [TableColumn(title, is_right=True) for title in (*columns, "LATENCY", "EXECUTORS")]
    console.table(
        [TableColumn("QUEUE", is_flexible=True), *titles], [_queue_line(queue, columns) for queue in stats.queues]
    )
    for queue in stats.queues:
        if queue.pause:
            console.write(queue.pause)
    console.write()
    executors = [executor for executor in stats.executors if executor.state != ExecutorState.STOPPED]
    if executors:
        show_executors(console, executors)
    if not stats.alive and stats.in_state(ExecutorState.PAUSED):
        console.write("All executors are paused: they claim no tasks. Run: manage.py jobqueue executors resume --all")
    elif not stats.alive:
        console.write("No executor is running. Run: manage.py run_executors")
    console.write()
    console.write(f"Last minute  {_counts(report.last_minute)}")
    console.write(f"Stored       {_counts(report.totals)}")


def _counts(counts: Mapping[Status, Count]) -> str:
    return ", ".join(f"{counts[status]} {status.lower()}" for status in FINAL)


def _queue_line(queue: QueueStats, columns: Sequence[Status]) -> list[object]:
    counts = {status: str(queue.counts[status]) for status in columns}
    if queue.row.max_running is not None:
        counts[Status.RUNNING] += f"/{queue.row.max_running:,}"
    return [queue.name, *counts.values(), queue.latency_text, "paused" if queue.is_paused else queue.executors]


def show_executors(console: Console, executors: Sequence[ExecutorStats]) -> None:
    """Show a table of executors, and why some make no progress."""
    console.table(EXECUTORS, [_executor_line(executor) for executor in executors])
    for row in (executor.row for executor in executors if executor.row.heartbeat.problem):
        console.write(f"{row.name}: {row.heartbeat.problem}")


def _executor_line(executor: ExecutorStats) -> list[object]:
    row = executor.row
    queues = ", ".join(served(row)) or "every"
    heartbeat = f"{duration(executor.silent_seconds)} ago"
    threads = f"{executor.busy}/{row.slots}"
    in_async = f"{executor.busy_async}/{row.async_slots}" if row.async_slots or executor.busy_async else "–"
    return [row.name, executor.state, threads, in_async, queues, row.host, heartbeat]


def executor_as_json(executor: ExecutorStats) -> dict[str, Any]:
    columns = ("id", "name", "host", "pid", "slots", "async_slots", "queues", "queue_limits")
    return {
        **{column: getattr(executor.row, column) for column in columns},
        **{name: getattr(executor, name) for name in ("state", "busy", "busy_async", "silent_seconds")},
        "problem": executor.row.heartbeat.problem,
    }


def _as_json(report: Report) -> dict[str, Any]:
    stats = report.stats
    return {
        "backend": stats.backend,
        "now": stats.now,
        "queues": [
            {
                "name": queue.name,
                **_plain(queue.counts),
                "latency_seconds": queue.latency,
                "executors": queue.executors,
                **queue_as_json(queue.row, stats.now),
            }
            for queue in stats.queues
        ],
        "executors": [executor_as_json(executor) for executor in stats.executors],
        "totals": _plain(report.totals),
        "last_minute": _plain(report.last_minute),
    }


def _plain(counts: Mapping[Status, Count]) -> dict[str, Any]:
    """Return counts as numbers, and the names of those that are lower bounds."""
    return {
        **{status.lower(): count.number for status, count in counts.items()},
        "at_least": [status.lower() for status, count in counts.items() if count.is_more],
    }


VERB = Verb("status", "Show queues, executors, and how many tasks ended in the last minute.", status, add_arguments)

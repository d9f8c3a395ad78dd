"""`status`: queues, executors, and what ended in the last minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from jobqueue.cli.backends import engines
from jobqueue.cli.conditions import Condition, broken
from jobqueue.cli.console import Console
from jobqueue.cli.queues import state as queue_state
from jobqueue.cli.tables import Column
from jobqueue.inspect.formatting import duration, served
from jobqueue.inspect.stats import Count, ExecutorFigures, Figures, QueueFigures, figures
from jobqueue.models import Queue
from jobqueue.records import FINAL, LIVE, Status

SHOWN = 50  # executors
QUEUES = (
    Column("QUEUE", gives=True),
    *(Column(status, is_right=True) for status in (*LIVE, Status.FAILED)),
    Column("LATENCY", is_right=True),
    Column("SERVED BY", is_right=True),
)
EXECUTORS = (
    Column("EXECUTOR", gives=True),
    Column("STATE"),
    Column("TASKS/THREADS", is_right=True),  # async tasks use no thread
    Column("QUEUES", gives=True),
    Column("HOST", gives=True),
    Column("LAST BEAT", is_right=True),
)


def status(console: Console, backend: str | None, conditions: Sequence[Condition]) -> None:
    """Show every backend's figures. Raises CommandError, exit code 1, where a condition holds."""
    everything = [figures(engine) for engine in engines(backend)]
    if console.is_json:
        console.write_json({"backends": [_as_json(one) for one in everything]})
    else:
        for place, one in enumerate(everything):
            if place:
                console.write()
            _show(console, one, has_title=len(everything) > 1)
    if found := list(broken(conditions, everything)):
        raise CommandError(f"--fail-if: {'; '.join(found)}")


def _show(console: Console, one: Figures, *, has_title: bool) -> None:
    if has_title:
        console.write(f"Backend {one.backend}")
    console.table(QUEUES, [_queue_line(queue) for queue in one.queues])
    for queue in one.queues:
        if queue.is_paused:
            console.write(f"{queue.name} is paused{_by_whom(queue)}.")
    console.write()
    executors = [executor for executor in one.executors if executor.state != "stopped"]
    if executors:
        console.table(EXECUTORS, [executor_line(executor) for executor in executors[:SHOWN]])
        if len(executors) > SHOWN:
            console.write(f"and {len(executors) - SHOWN:,} more")
    if not one.serving and one.has_quiet:
        console.write("Executors are quiet, none claims anything: manage.py jobqueue executors resume --all.")
    elif not one.serving:
        console.write("No executor is alive: manage.py run_executors starts one.")
    console.write()
    console.write(f"Last minute  {_counts(one.last_minute)}")
    console.write(f"Kept         {_counts(one.totals)}")


def _counts(counts: Mapping[Status, Count]) -> str:
    return ", ".join(f"{counts[status]} {status.lower()}" for status in FINAL)


def _queue_line(queue: QueueFigures) -> list[object]:
    latency = "–" if queue.latency is None else duration(timedelta(seconds=queue.latency))
    counts = {status: str(count) for status, count in queue.counts.items()}
    if queue.row is not None and queue.row.max_running is not None:
        counts[Status.RUNNING] += f"/{queue.row.max_running:,}"
    return [queue.name, *counts.values(), latency, "paused" if queue.is_paused else queue.serving]


def _by_whom(queue: QueueFigures) -> str:
    row = queue.row
    if row is None:
        return ""
    by = f" by {row.paused_by}" if row.paused_by else ""
    until = f" until {row.resume_at:%Y-%m-%d %H:%M %Z}" if row.resume_at else ""
    return by + until + (f": {row.pause_reason}" if row.pause_reason else "")


def executor_line(executor: ExecutorFigures) -> list[object]:
    row = executor.row
    queues = ", ".join(served(row)) or "every"
    beat = f"{duration(timedelta(seconds=executor.silent_seconds))} ago"
    return [row.name, executor.state, f"{executor.busy}/{row.slots}", queues, row.host, beat]


def executor_as_json(executor: ExecutorFigures) -> dict[str, Any]:
    row = executor.row
    return {
        "id": row.pk,
        "name": row.name,
        "host": row.host,
        "pid": row.pid,
        "state": executor.state,
        "busy": executor.busy,
        "slots": row.slots,
        "queues": row.queues,
        "queue_limits": row.queue_limits,
        "silent_seconds": executor.silent_seconds,
    }


def _as_json(one: Figures) -> dict[str, Any]:
    return {
        "backend": one.backend,
        "now": one.now,
        "queues": [
            {
                "name": queue.name,
                **_plain(queue.counts),
                "latency_seconds": queue.latency,
                "executors": queue.serving,
                **queue_state(queue.row or Queue(), one.now),
            }
            for queue in one.queues
        ],
        "executors": [executor_as_json(executor) for executor in one.executors],
        "totals": _plain(one.totals),
        "last_minute": _plain(one.last_minute),
    }


def _plain(counts: Mapping[Status, Count]) -> dict[str, Any]:
    """Write counts as numbers, and name those that are more than that."""
    return {
        **{status.lower(): count.number for status, count in counts.items()},
        "at_least": [status.lower() for status, count in counts.items() if count.is_more],
    }

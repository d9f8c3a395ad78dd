"""The results of a load test: a table, and a list of tasks that were lost or done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tools.load.caller import Answer
from tools.tables import seconds, table

ENDED = ("SUCCESSFUL", "FAILED")
SHOWN = 5


@dataclass(frozen=True, slots=True)
class LoadRow:
    """The row of one task. number: its argument."""

    id: str
    number: int
    status: str
    errors: int
    starts: int


@dataclass(frozen=True, slots=True)
class RunData:
    """The data of one run."""

    asked: int  # different submissions
    answers: Sequence[Answer]
    rows: Sequence[LoadRow]
    effects: Counter[str] = field(default_factory=Counter)  # by task
    submit_seconds: float = 1.0
    total_seconds: float = 1.0


def complaints(measured: RunData) -> Iterator[str]:
    """Yield a sentence for each kind of wrong result: lost, done twice, or not ended."""
    refused = [answer for answer in measured.answers if not answer.task_id]
    yield from listed("was not accepted", [f"{answer.number} ({answer.status})" for answer in refused])
    ids: dict[int, set[str]] = {}
    for answer in measured.answers:
        if answer.task_id:
            ids.setdefault(answer.number, set()).add(answer.task_id)
    yield from listed("has several ids", [str(number) for number, task_ids in ids.items() if len(task_ids) > 1])
    created = Counter(answer.number for answer in measured.answers if answer.status == 201)
    yield from listed("was created twice", [str(number) for number, times in created.items() if times > 1])

    rows = Counter(row.id for row in measured.rows)
    acknowledged = {task_id for task_ids in ids.values() for task_id in task_ids}
    yield from listed("was acknowledged and is lost", sorted(acknowledged - rows.keys()))
    yield from listed("exists but was not acknowledged", sorted(rows.keys() - acknowledged))
    numbers = Counter(row.number for row in measured.rows)
    yield from listed("exists more than once", [str(number) for number, times in numbers.items() if times > 1])
    if len(ids) != measured.asked:
        yield f"{measured.asked} were submitted, {len(ids)} acknowledged."

    yield from listed("has not ended", [f"{row.id} ({row.status})" for row in measured.rows if row.status not in ENDED])
    for row in measured.rows:
        wanted = 1 if row.status == "SUCCESSFUL" else 0
        if measured.effects[row.id] != wanted:
            yield f"Task {row.id} is {row.status} and took effect {measured.effects[row.id]} times."
    yield from listed("took effect without a task", sorted(measured.effects.keys() - rows.keys()))


def listed(what: str, which: Sequence[str]) -> Iterator[str]:
    if which:
        more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
        yield f"{len(which)} {what}: {', '.join(which[:SHOWN])}{more}"


def report(measured: RunData) -> Iterator[str]:
    """Yield the lines of the table."""
    times = sorted(answer.seconds for answer in measured.answers) or [0.0]
    statuses = Counter(row.status for row in measured.rows)
    retries = sum(row.errors - (row.status == "FAILED") for row in measured.rows)
    created = sum(answer.status == 201 for answer in measured.answers)
    numbers = {
        "requests": str(len(measured.answers)),
        "created (201)": str(created),
        "repeated, same id (200)": str(sum(answer.status == 200 for answer in measured.answers)),
        "retried by the client": str(sum(answer.tries - 1 for answer in measured.answers)),
        "submissions a second": f"{len(measured.answers) / measured.submit_seconds:.0f}",
        "latency p50": seconds(median(times)),
        "latency p95": seconds(percentile(times, 0.95)),
        "latency p99": seconds(percentile(times, 0.99)),
        "latency max": seconds(times[-1]),
        "tasks ended": str(sum(statuses[status] for status in ENDED)),
        "successful": str(statuses["SUCCESSFUL"]),
        "failed after all attempts": str(statuses["FAILED"]),
        "attempts": str(sum(row.starts for row in measured.rows)),
        "retries": str(retries),
        "effects": str(measured.effects.total()),
        "tasks a second, start to end": f"{len(measured.rows) / measured.total_seconds:.0f}",
    }
    yield from table(("", "value"), list(numbers.items()))


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest of the sorted values that a share `part` of them does not exceed."""
    return values[max(0, -int(-len(values) * part // 1) - 1)]

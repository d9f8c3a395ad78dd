"""--fail-if: what makes `status` exit 1, for cron and Nagios."""

from __future__ import annotations

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jobqueue.cli.argument_types import age
from jobqueue.inspect.queries import CAP
from jobqueue.inspect.stats import Figures
from jobqueue.records import Status

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
STATUSES = {status.lower(): status for status in Status}
OF_QUEUE = ("latency", "ready", "executors", "paused")  # known of each queue, too: latency[emails]
NAMES = ("latency", "executors", "lost", "paused", *STATUSES)
PATTERN = re.compile(r"\s*([a-z_]+)(?:\[([^\]]+)\])?\s*(>=|<=|==|!=|>|<|=)\s*(\S+)\s*")
EXAMPLE = "latency>60, latency[emails]>5m, failed>0, executors<1"


@dataclass(frozen=True, slots=True)
class Condition:
    """`text` as it was written; queue: None for all of them."""

    text: str
    name: str
    queue: str | None
    compare: str
    limit: float

    def holds(self, value: float) -> bool:
        return COMPARE[self.compare](value, self.limit)


def condition(text: str) -> Condition:
    """Read a condition. Raises ArgumentTypeError."""
    found = PATTERN.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"must be like {EXAMPLE}, not {text!r}")
    name, queue, compare, limit = found.groups()
    if name not in NAMES:
        raise ArgumentTypeError(f"knows {', '.join(NAMES)}, not {name!r}")
    if queue is not None and name not in OF_QUEUE:
        raise ArgumentTypeError(f"knows {', '.join(OF_QUEUE)} of a queue, not {name!r}")
    if name != "latency" and not limit.isdecimal():
        raise ArgumentTypeError(f"must compare {name} with a whole number, not {limit!r}")
    value = age(limit)
    if name in STATUSES and value > CAP:
        raise ArgumentTypeError(f"cannot compare {name} with more than {CAP:,}: no further is counted")
    return Condition(text.strip(), name, queue, compare, value)


def broken(conditions: Iterable[Condition], everything: list[Figures]) -> Iterator[str]:
    """Say which conditions hold, and by what."""
    for one in conditions:
        value = measure(one, everything)
        if one.holds(value):
            yield f"{one.text} (it is {value:,.0f}{' s' if one.name == 'latency' else ''})"


def measure(one: Condition, everything: list[Figures]) -> float:
    """Give the figure that a condition speaks of; counts above CAP are CAP + 1."""
    queues = [queue for figures in everything for queue in figures.queues if one.queue in (None, queue.name)]
    match one.name:
        case "latency":
            return max((queue.latency or 0.0 for queue in queues), default=0.0)
        case "executors" if one.queue is None:
            return sum(len(figures.serving) for figures in everything)
        case "executors":
            return sum(queue.serving for queue in queues)
        case "paused":
            return sum(queue.is_paused for queue in queues)
        case "lost":
            return sum(executor.state == "lost" for figures in everything for executor in figures.executors)
    status = STATUSES[one.name]
    counts = (
        [queue.counts[status] for queue in queues]
        if one.queue is not None
        else [figures.totals[status] for figures in everything]
    )
    return sum(count.number + count.is_more for count in counts)

"""The tree of a Fibonacci actor as a drawing: the place and the state of each task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from demo_project.photos.actors import Fibonacci
from demo_project.photos.gallery import reason
from jobqueue.models import Task

LARGEST = 12
PAUSES = {"quick": 0.0, "slow": 0.7}
SLOT = 36  # units of the drawing: the width of a leaf

Status = Task.Status
WORDS = {
    Status.READY: ("ready", "ready"),
    Status.BLOCKED: ("ready", "waits for its turn"),
    Status.SCHEDULED: ("ready", "waits for a retry"),
    Status.RUNNING: ("running", "running"),
    Status.SUSPENDED: ("suspended", "suspended"),
    Status.SUCCESSFUL: ("done", "done"),
    Status.FAILED: ("failed", "failed"),
    Status.CANCELLED: ("failed", "cancelled"),
}
STATES = ("ready", "running", "sleeping", "suspended", "done", "failed")
UNFINISHED = STATES[:4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One task of the drawing. above: the place of its parent."""

    task_id: UUID
    n: int
    state: str
    words: str
    value: int | None
    x: int
    y: int
    radius: int
    above: tuple[int, int] | None

    @property
    def font_size(self) -> int:
        """Return the font size of its text."""
        return max(12, round(0.8 * self.radius))

    @property
    def text_y(self) -> int:
        return self.y + round(0.35 * self.font_size)

    @property
    def value_y(self) -> int:
        return self.y + self.radius + self.font_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One run. expected: the number of tasks of the complete tree."""

    root: Task
    n: int
    nodes: list[Node]
    expected: int
    polls: int

    @property
    def width(self) -> int:
        return width(self.n)

    @property
    def height(self) -> int:
        return max(0, self.n - 2) * level_height(self.n) + 2 * margin(self.n)

    @property
    def is_busy(self) -> bool:
        return not self.root.is_finished or any(node.state in UNFINISHED for node in self.nodes)

    @property
    def counts(self) -> list[tuple[str, int]]:
        by_state = Counter(node.state for node in self.nodes)
        return [(state, by_state[state]) for state in STATES]

    @property
    def seconds(self) -> float:
        return ((self.root.finished_at or timezone.now()) - self.root.enqueued_at).total_seconds()

    @property
    def problem(self) -> str:
        if self.root.status == Status.CANCELLED:
            return "It was cancelled."
        return reason(self.root) if self.root.status == Status.FAILED else ""


@lru_cache
def leaves(n: int) -> int:
    """Return the number of tasks without children in the tree of fib(n). It equals fib(n)."""
    return 1 if n <= 2 else leaves(n - 1) + leaves(n - 2)


def radius(n: int) -> int:
    """Return the radius of a task. It grows with the number of tasks below."""
    return round(9 + 4 * math.sqrt(leaves(n)))


def margin(n: int) -> int:
    return radius(n) + 8


def width(n: int) -> int:
    return leaves(n) * SLOT + 2 * margin(n)


def level_height(n: int) -> int:
    """Return the height of a level: more for a wide tree, which would look flat."""
    return max(80, round(0.4 * width(n) / max(1, n - 2)))


def runs() -> QuerySet[Task]:
    """Return the roots, newest first. Ids are in the order of time."""
    return Task.objects.filter(task_type=Fibonacci.task.task_type, parent=None).order_by("-pk")


def start(n: int, pace: str) -> str:
    """Start a tree. Return the id of its root."""
    return str(Fibonacci.enqueue(n, PAUSES[pace]).id)


def tree(root: Task) -> Tree:
    """Read a tree with one query for each generation. Place the tasks as in the complete tree."""
    n = int(root.args[0])
    children: dict[UUID, list[Task]] = {}
    found, level = [root], [root]
    while level:
        level = list(Task.objects.filter(parent_id__in=[task.pk for task in level]))
        for task in level:
            children.setdefault(task.parent_id, []).append(task)  # type: ignore[arg-type]
        found += level
    nodes = list(place(root, children, left=margin(n), y=margin(n), height=level_height(n), above=None))
    polls = sum(task.polls for task in found)
    return Tree(root=root, n=n, nodes=nodes, expected=2 * leaves(n) - 1, polls=polls)


def place(
    task: Task, children: Mapping[UUID, list[Task]], *, left: int, y: int, height: int, above: tuple[int, int] | None
) -> Iterator[Node]:
    """Yield a task and the tasks below it. left: the left edge of its part of the drawing."""
    n = int(task.args[0])
    x = left + leaves(n) * SLOT // 2
    yield node(task, n=n, x=x, y=y, above=above)
    for child in children.get(task.pk, ()):
        is_smaller = int(child.args[0]) == n - 2
        start = left + leaves(n - 1) * SLOT if is_smaller else left
        yield from place(child, children, left=start, y=y + height, height=height, above=(x, y))


def node(task: Task, *, n: int, x: int, y: int, above: tuple[int, int] | None) -> Node:
    state, words = WORDS[Status(task.status)]
    if state == "suspended":
        state, words = ("sleeping", "sleeps") if task.wake_at else ("suspended", "waits for its children")
    return Node(
        task_id=task.pk,
        n=n,
        state=state,
        words=words,
        value=task.return_value if task.status == Status.SUCCESSFUL else None,
        x=x,
        y=y,
        radius=radius(n),
        above=above,
    )

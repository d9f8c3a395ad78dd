"""
The ancestors of a task, and its descendants as a tree.

Reading descendants takes at most five queries and about 16,000 short rows, however many there are. The rows are ordered
by parent_id, which only the index of children provides, so statistics cannot lead the planner elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models.functions import Coalesce, Now

from jobqueue.engine import CAP, LEVEL_CAP
from jobqueue.models import LIVE, Task

LEVELS = 3  # shown below the task
SHOWN = 100  # tasks per level
MAX_ANCESTORS = 20
BAR_WIDTH = 1000

# The order in which children are chosen if not all can be shown: failed, then unfinished ones.
INTEREST: dict[str | None, int] = {Task.Status.FAILED: 0, Task.Status.CANCELLED: 2, Task.Status.SUCCESSFUL: 3}


class Relative(NamedTuple):
    """A task above or below. Only its id is known if its row was pruned: the rest is None."""

    pk: UUID  # of the task
    parent_id: UUID | None = None  # None for the root, too
    status: str | None = None  # of the task
    task_type: str | None = None  # of the task
    key: str | None = None  # the unique key; None without one, too

    @property
    def is_gone(self) -> bool:
        return self.status is None

    @property
    def has_ended(self) -> bool:
        return self.status not in LIVE


@dataclass(slots=True)
class Branch:
    """The children of one task."""

    parent_id: UUID  # the one task
    counts: Counter[str] = field(default_factory=Counter)  # of children by status
    is_truncated: bool = False  # there are more children, which were not counted
    nodes: list[Node] = field(default_factory=list)  # the children that are shown
    start: datetime | None = None  # of the bars of the whole tree, in its first branch; None: no bars
    end: datetime | None = None  # of the bars of the whole tree, in its first branch; None: no bars

    def descendants(self) -> Iterator[Node]:
        for node in self.nodes:
            yield node
            yield from node.branch.descendants()

    def __bool__(self) -> bool:
        return bool(self.counts) or self.is_truncated

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def live(self) -> int:
        return sum(self.counts[status] for status in LIVE)

    @property
    def hidden(self) -> int:
        return self.total - len(self.nodes)

    @property
    def states(self) -> list[tuple[str, int]]:
        return [(status, self.counts[status]) for status in Task.Status.values if status in self.counts]

    @property
    def size(self) -> int:
        """The number of shown tasks on all levels."""
        return sum(1 + node.branch.size for node in self.nodes)


class Bar(NamedTuple):
    """The wait and the run of a task, as places from 0 to BAR_WIDTH."""

    enqueued: int  # the place where its wait starts
    started: int  # the place where its body starts
    ended: int  # the place where it ends, or now
    wait_seconds: float  # from READY to the first claim
    run_seconds: float | None  # None: it has not run

    @property
    def waited(self) -> int:
        return self.started - self.enqueued

    @property
    def ran(self) -> int:
        """Return the width of the bar, of which the shortest can still be seen."""
        return max(self.ended - self.started, BAR_WIDTH // 100) if self.run_seconds is not None else 0


@dataclass(slots=True)
class Node:
    """A task in the tree, with its children."""

    task: Relative
    branch: Branch
    bar: Bar | None = None


def read_tree(database: str, root: UUID) -> Branch:
    """Read the descendants of a task. On the last level they are only counted."""
    tree = Branch(root)
    level, limit = {root: tree}, CAP
    for depth in range(LEVELS + 1):
        children = _count_children(database, level, limit)
        if depth == LEVELS:
            break
        below: dict[UUID, Branch] = {}
        for child in sorted(choose(children, SHOWN)):
            branch = below[child.pk] = Branch(child.pk)
            level[child.parent_id].nodes.append(Node(child, branch))  # type: ignore[index]
        level, limit = below, LEVEL_CAP
    _draw(database, tree)
    return tree


def _draw(database: str, tree: Branch) -> None:
    """Draw the bars of all shown tasks, on one scale."""
    tree.start, tree.end, bars = _read_bars(database, [node.task.pk for node in tree.descendants()])
    for node in tree.descendants():
        node.bar = bars.get(node.task.pk)


def read_nodes(database: str, ids: Collection[UUID]) -> tuple[datetime | None, datetime | None, dict[UUID, Node]]:
    """Read some tasks with their bars, on one scale. Return its start and end, too."""
    start, end, bars = _read_bars(database, ids)
    rows = Task.objects.using(database).filter(pk__in=list(bars)).values_list(*Relative._fields) if bars else ()
    tasks = [Relative(*row) for row in rows]
    return start, end, {task.pk: Node(task, Branch(task.pk), bars.get(task.pk)) for task in tasks}


def _read_bars(database: str, ids: Collection[UUID]) -> tuple[datetime | None, datetime | None, dict[UUID, Bar]]:
    """Read the start and the end of the scale, and the bars by task."""
    if not ids:
        return None, None, {}
    rows = Task.objects.using(database).filter(pk__in=ids).annotate(now=Now())
    times = list(rows.values_list("pk", "enqueued_at", "started_at", Coalesce("finished_at", "now")))
    first = min((enqueued for _, enqueued, *_ in times), default=None)
    last = max((ended for *_, ended in times), default=None)
    bars: dict[UUID, Bar] = {}
    for pk, enqueued, started, ended in times if first is not None and last is not None else ():
        length = max((last - first).total_seconds(), 0.001)  # type: ignore[operator]
        waits_from, runs_from, upto = (
            int(BAR_WIDTH * (at - first).total_seconds() / length + 0.5) for at in (enqueued, started or ended, ended)
        )
        wait = ((started or ended) - enqueued).total_seconds()
        run = None if started is None else max(0.0, (ended - started).total_seconds())
        bars[pk] = Bar(waits_from, runs_from, upto, max(0.0, wait), run)
    return first, last, bars


def _count_children(database: str, parents: Mapping[UUID, Branch], limit: int) -> list[Relative]:
    """Read the children of a level, and count them in its branches."""
    rows = Task.objects.using(database).filter(parent_id__in=list(parents)).order_by("parent_id")
    children = [Relative(*row) for row in rows.values_list(*Relative._fields)[: limit + 1]] if parents else []
    for child in children[:limit]:
        parents[child.parent_id].counts[child.status] += 1  # type: ignore[index]
    if len(children) > limit:  # the children of the last parent, and of later ones, are not all known
        for pk, branch in parents.items():
            branch.is_truncated = pk >= children[-1].parent_id  # type: ignore[operator]
    return children[:limit]


def choose(children: Iterable[Relative], limit: int) -> list[Relative]:
    """Choose the children to show: an equal share of each parent's, failed ones first."""
    by_parent: dict[UUID | None, list[Relative]] = {}
    for child in children:
        by_parent.setdefault(child.parent_id, []).append(child)
    ranked = [
        (index, child)
        for group in by_parent.values()
        for index, child in enumerate(sorted(group, key=lambda row: (INTEREST.get(row.status, 1), row.pk))[:limit])
    ]
    return [child for _, child in sorted(ranked)[:limit]]


class Ancestors(NamedTuple):
    """The ancestors of a task."""

    line: list[Relative]  # the root first
    is_truncated: bool  # there are more above

    @property
    def parent(self) -> Relative | None:
        return self.line[-1] if self.line else None


def read_ancestors(database: str, task: Task) -> Ancestors:
    """Read the ancestors of a task, up to MAX_ANCESTORS, with a query each."""
    line: list[Relative] = []
    above = task.parent_id
    while above is not None and len(line) < MAX_ANCESTORS:
        rows = Task.objects.using(database).filter(pk=above).values_list(*Relative._fields)
        line.append(Relative(*next(iter(rows), (above,))))
        above = line[-1].parent_id
    return Ancestors(line[::-1], is_truncated=above is not None)

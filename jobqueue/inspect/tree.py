"""
The ancestors of a task, and its descendants as a tree.

Reading takes at most five queries and about 16,000 short rows, however many children there are. The rows are ordered by
parent_id, which only the index of children provides, so statistics cannot lead the planner elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from jobqueue.models import LIVE, Task

LEVELS = 3  # shown below the task
SHOWN = 100  # tasks per level
COUNTED = 10_000  # children of the task itself
COUNTED_BELOW = 2000  # children of a whole deeper level
STEP = 6  # ancestors per query, each a join
STEPS = 4

# The order in which children are chosen if not all can be shown: failed, then unfinished ones.
INTEREST = {Task.Status.FAILED: 0, Task.Status.CANCELLED: 2, Task.Status.SUCCESSFUL: 3}


class Child(NamedTuple):
    parent_id: UUID
    pk: UUID
    status: str

    @property
    def interest(self) -> tuple[int, UUID]:
        return INTEREST.get(Task.Status(self.status), 1), self.pk


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The children of one task. counts: by status; is_truncated: there are more children, which were not counted."""

    parent_id: UUID
    counts: Mapping[str, int] = field(default_factory=dict)
    is_truncated: bool = False
    nodes: Sequence[Node] = ()

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def live(self) -> int:
        return sum(self.counts.get(status, 0) for status in LIVE)

    @property
    def hidden(self) -> int:
        return self.total - len(self.nodes)

    @property
    def states(self) -> list[tuple[str, int]]:
        return [(status, self.counts[status]) for status in Task.Status.values if status in self.counts]

    @property
    def size(self) -> int:
        """The number of shown tasks on all levels."""
        return sum(1 + (node.branch.size if node.branch else 0) for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A task in the tree, with its children if it has any."""

    task: Task
    branch: Branch | None


def read_tree(database: str, root: UUID) -> Branch:
    """Read the descendants of a task. On the last level they are only counted."""
    branches: list[dict[UUID, Branch]] = []
    shown: list[list[Child]] = []
    parents = [root]
    for depth in range(LEVELS + 1):
        children, known = _read_level(database, parents, COUNTED if depth == 0 else COUNTED_BELOW)
        branches.append(known)
        shown.append(choose(children, SHOWN) if depth < LEVELS else [])
        parents = [child.pk for child in shown[-1]]
        if not parents:
            break
    tasks = _read_tasks(database, [child.pk for level in shown for child in level])
    return _build(root, branches, shown, tasks)


def _read_level(database: str, parents: list[UUID], limit: int) -> tuple[list[Child], dict[UUID, Branch]]:
    rows = Task.objects.using(database).filter(parent_id__in=parents).order_by("parent_id")
    children = [Child(*row) for row in rows.values_list("parent_id", "pk", "status")[: limit + 1]]
    is_truncated = len(children) > limit
    last = children[-1].parent_id if is_truncated else None
    children = children[:limit]
    known = {
        parent: Branch(parent_id=parent, counts=Counter(child.status for child in group), is_truncated=parent == last)
        for parent, group in groupby(children, key=lambda child: child.parent_id)
    }
    if last is not None:  # the rows end here, so later parents have unknown children
        known |= {pk: Branch(parent_id=pk, is_truncated=True) for pk in parents if pk >= last and pk not in known}
    return children, known


def choose(children: Iterable[Child], limit: int) -> list[Child]:
    """Choose the children to show: an equal share of each parent's, failed ones first."""
    by_parent: dict[UUID, list[Child]] = {}
    for child in children:
        by_parent.setdefault(child.parent_id, []).append(child)
    ranked = [
        (place, child)
        for group in by_parent.values()
        for place, child in enumerate(sorted(group, key=lambda child: child.interest)[:limit])
    ]
    ranked.sort(key=lambda pair: (pair[0], pair[1].pk))
    return [child for _, child in ranked[:limit]]


def _read_tasks(database: str, ids: list[UUID]) -> dict[UUID, Task]:
    rows = Task.objects.using(database).filter(pk__in=ids).only("task_type", "key", "status") if ids else []
    return {row.pk: row for row in rows}


def _build(
    parent: UUID, branches: list[dict[UUID, Branch]], shown: list[list[Child]], tasks: dict[UUID, Task]
) -> Branch:
    counted = branches[0].get(parent, Branch(parent_id=parent))
    nodes = [
        Node(
            task=tasks[child.pk],
            branch=_build(child.pk, branches[1:], shown[1:], tasks) if child.pk in branches[1] else None,
        )
        for child in sorted(shown[0], key=lambda child: child.pk)
        if child.parent_id == parent and child.pk in tasks
    ]
    return Branch(parent_id=parent, counts=counted.counts, is_truncated=counted.is_truncated, nodes=nodes)


class Ancestor(NamedTuple):
    """A task above. Only its id is known if its row was pruned."""

    pk: UUID
    task_type: str | None
    status: str | None

    @property
    def is_gone(self) -> bool:
        return self.task_type is None

    @property
    def has_ended(self) -> bool:
        return self.status not in LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestors:
    """The ancestors of a task, the root first. is_truncated: there are more above."""

    line: Sequence[Ancestor] = ()
    is_truncated: bool = False

    @property
    def parent(self) -> Ancestor | None:
        return self.line[-1] if self.line else None


def read_ancestors(database: str, task: Task) -> Ancestors:
    """Read the ancestors of a task, STEP of them per query."""
    if task.parent_id is None:
        return Ancestors()
    line: list[Ancestor] = []
    start = task.pk
    for _ in range(STEPS):
        found = _read_above(database, start)
        line += found
        if len(found) < STEP or found[-1].is_gone:
            return Ancestors(line=line[::-1])
        start = found[-1].pk
    return Ancestors(line=line[::-1], is_truncated=True)


def _read_above(database: str, start: UUID) -> list[Ancestor]:
    columns = [f"{'parent__' * step}{name}" for step in range(1, STEP + 1) for name in Ancestor._fields]
    values = Task.objects.using(database).filter(pk=start).values_list(*columns).first() or ()
    width = len(Ancestor._fields)
    steps = [Ancestor(*values[at : at + width]) for at in range(0, len(values), width)]
    return [ancestor for ancestor in steps if ancestor.pk is not None]

"""Failures of workflows because of a child, both of which a requeue requeues."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q, Subquery
from django.db.models.fields.json import KT

from jobqueue.engine.database import Part
from jobqueue.engine.entries import EntryStatements
from jobqueue.engine.inbox import UNSUCCESSFUL
from jobqueue.values.journal import EntryKind, EntryStatus
from jobqueue.values.states import Status

COLUMNS = ("pk", "status", "key", "task_type", "parent_id")

FAILED_CHILD = KT("inner_state__failed_child")
HAS_STATE = ExpressionWrapper(Q(inner_state__isnull=False), BooleanField())

Pair = tuple[UUID, UUID]  # a workflow, and the child because of which it has failed


@dataclass(eq=False)
class SharedFailures(Part):
    entries: EntryStatements  # of journals

    def lock(self, ids: Collection[UUID], *, wait: bool = False) -> list[Any]:
        """Lock tasks with the columns that a requeue reads. `failed_child`: of WorkflowState, a text."""
        rows = self.db.lock(ids, wait=wait).annotate(failed_child=FAILED_CHILD, has_state=HAS_STATE)
        return list(rows.only(*COLUMNS))

    def lock_related(self, rows: Iterable[Any]) -> tuple[list[Any], set[Pair], set[UUID]]:
        """
        Lock the tasks that failed with locked ones, skipping locked ones: workflows above them, and children below.

        Return their rows, the pairs among all of them, and those of the first ones that cannot be requeued now, because
        another session has locked a related task. rows: of lock().
        """
        new = list(rows)
        first_of = {row.pk: row.pk for row in new}  # by task, the one of the first rows that led to it
        pairs, related, busy = set[Pair](), dict[UUID, Any](), set[UUID]()
        while new:
            linked = self._pairs_with(new) - pairs
            pairs |= linked
            unseen = dict[UUID, UUID]()
            for pair in linked:
                for pk, other in (pair, pair[::-1]):
                    if pk not in first_of:
                        first_of[pk] = unseen[pk] = first_of[other]
            new = self.lock(unseen) if unseen else []
            related |= {row.pk: row for row in new}
            left = unseen.keys() - related.keys()
            busy |= {unseen[pk] for pk in left - self.db.missing(left)}
        return [row for row in related.values() if first_of[row.pk] not in busy], pairs, busy

    def _pairs_with(self, rows: Iterable[Any]) -> set[Pair]:
        """Return the pairs that have one of these rows, as the state and the journal of the workflow say."""
        rows = [row for row in rows if row.status in UNSUCCESSFUL]
        parents = {row.parent_id for row in rows} - {None}
        failed = self.db.tasks.failed().filter(pk__in=parents).annotate(failed_child=FAILED_CHILD)
        named = set(failed.values_list("pk", "failed_child")) if parents else set()
        pairs = {(row.parent_id, row.pk) for row in rows if (row.parent_id, str(row.pk)) in named}
        pairs |= {(row.pk, named_child(row.failed_child)) for row in rows if row.status == Status.FAILED}
        return {(parent, child) for parent, child in pairs if child is not None and self._spawn(parent, child).exists()}

    def _spawn(self, parent: UUID, child: UUID) -> Any:
        return self.entries.of(parent).filter(kind=EntryKind.SPAWN, child_id=child)

    def wait_again(self, pairs: Collection[Pair]) -> None:
        """
        Let each requeued workflow wait for its child again. It spawns another one if the child is gone.

        A child that has failed and was not requeued stays as it is, so that no workflow waits for it without end. One
        that was requeued earlier, and successful since, has sent its end already: its result is copied.
        """
        children = dict(self.db.by_ids({child for _, child in pairs}).values_list("pk", "status")) if pairs else {}
        for parent, child in pairs:
            if child not in children:
                self._spawn(parent, child)._raw_delete(self.db.using)
            elif children[child] == Status.SUCCESSFUL:
                result = self.db.tasks.filter(pk=child).values("return_value")
                self._spawn(parent, child).update(status=EntryStatus.SUCCESSFUL, value=Subquery(result), error=None)
            elif children[child] not in UNSUCCESSFUL:
                self._spawn(parent, child).update(status=EntryStatus.WAITING, value=None, error=None, finished_at=None)


def named_child(text: str | None) -> UUID | None:
    """Return the id that a state names; None: it names none. The state of an actor may have any value there."""
    try:
        return UUID(text) if text else None
    except ValueError:
        return None

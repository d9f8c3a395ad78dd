"""The answers of functions that change many tasks, such as cancel() and requeue()."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """
    The result of a call that changes tasks, as named numbers and sets of ids.

    The engine returns one for a batch. The API and the bulk actions add them up, and pages make a sentence of the sum.
    """

    def __add__(self, other: Self) -> Self:
        pairs = {column.name: (getattr(self, column.name), getattr(other, column.name)) for column in fields(self)}
        return type(self)(**{name: a + b if isinstance(a, int) else a | b for name, (a, b) in pairs.items()})

    @property
    def numbers(self) -> dict[str, int]:
        """The fields by name, with the size of each set in place of the set."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: value if isinstance(value, int) else len(value) for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReport(BulkResult):
    """The result of cancel(), as numbers and ids of tasks."""

    cancelled: int = 0  # ended at once
    requested: int = 0  # they run, and were asked to stop
    skipped: int = 0  # unknown, or ended before
    parents: frozenset[UUID] = field(default=frozenset(), repr=False)  # the caller wakes them after the commit
    # not changed, because another transaction has locked them; cancel them again after its end
    busy: frozenset[UUID] = frozenset()
    not_allowed: frozenset[UUID] = frozenset()  # live tasks that `may` did not allow


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueReport(BulkResult):
    """The result of requeue(), as numbers and ids of tasks."""

    requeued: int = 0  # READY again
    key_taken: int = 0  # not changed, because a live task has their key
    # unknown, neither FAILED nor CANCELLED, or a task of a bulk action, which is started again from the list
    skipped: int = 0
    # not changed, because another transaction has locked them; requeue them again after its end
    busy: frozenset[UUID] = frozenset()
    # requeued with them: workflows that failed because of them, and their failed children; the caller notifies
    related: frozenset[UUID] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport(BulkResult):
    """The result of run_now(), discard() or delete()."""

    changed: int = 0  # how many tasks
    skipped: int = 0  # unknown, or in a state that the call does not change
    # not changed, because another transaction has locked them; try again after its end
    busy: frozenset[UUID] = frozenset()

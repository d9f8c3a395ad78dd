"""The answers of functions that change many tasks, such as cancel() and requeue()."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReport:
    """The result of cancel(), as numbers and ids of tasks."""

    cancelled: int = 0  # ended at once
    requested: int = 0  # they run, and were asked to stop
    skipped: int = 0  # unknown, or ended before
    parents: frozenset[UUID] = field(default=frozenset(), repr=False)  # the caller wakes them after the commit
    # not changed, because another transaction has locked them; cancel them again after its end
    busy: frozenset[UUID] = frozenset()
    not_allowed: frozenset[UUID] = frozenset()  # live tasks that `may` did not allow


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueReport:
    """The result of requeue(), as numbers and ids of tasks."""

    requeued: int = 0  # READY again
    key_taken: int = 0  # not changed, because a live task has their key
    skipped: int = 0  # unknown, not FAILED or CANCELLED, or a bulk action, which people start again from the list
    # not changed, because another transaction has locked them; requeue them again after its end
    busy: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport:
    """The result of run_now(), discard() or delete()."""

    changed: int = 0  # how many tasks
    skipped: int = 0  # unknown, or in a state that the call does not change
    # not changed, because another transaction has locked them; try again after its end
    busy: frozenset[UUID] = frozenset()

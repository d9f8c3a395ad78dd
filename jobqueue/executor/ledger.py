"""Outcomes on their way into the database, each until its row says what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from jobqueue.engine.base import Engine
from jobqueue.executor.run import Ended, Worker, refused_by_database
from jobqueue.outcome import FINAL, Committed, Outcome, Status

Conclusion = tuple[Ended, Status | None]  # None: the claim was lost, the outcome is dropped


class _Row(NamedTuple):
    claim_number: int
    status: str
    lost_count: int


class Ledger:
    """What has ended and is not settled. Belongs to the pulse's thread."""

    def __init__(self, engine: Engine, worker: Worker) -> None:
        self._engine, self._worker = engine, worker
        self._open: dict[UUID, Ended] = {}
        self._in_doubt: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._open)

    def outcomes(self) -> list[Outcome]:
        return [over.outcome for over in self._open.values()]

    def add(self, over: Ended) -> Ended | None:
        """
        Take an outcome in. Returns the one that is lost by it, if any.

        A claim that we lost, say in an outage, may have come back to us while its first body still ran.
        """
        before = self._open.get(over.hold.id)
        if before is None:
            self._open[over.hold.id] = over
            return None
        older, newer = sorted((before, over), key=lambda ended: ended.hold.claimed.claim_number)
        self._open[over.hold.id] = newer
        return older

    def doubt(self) -> None:
        """The database went away: any outcome may have been committed, without an answer."""
        self._in_doubt |= self._open.keys()

    def settle(self, committed: Committed) -> list[Conclusion]:
        """Strike out what the database answered for. Raises django.db.Error, and nothing is struck out then."""
        rows = self._rows(pk for pk in committed.lost if self._is_doubtful(pk))
        conclusions: list[Conclusion] = [(self._open[pk], status) for pk, status in committed.done.items()]
        conclusions += [self._explain(pk, rows.get(pk)) for pk in committed.lost]
        for over, _ in conclusions:
            self._open.pop(over.hold.id)
        for pk, error in committed.refused.items():
            self._open[pk] = refused_by_database(self._open[pk], error, self._worker)
        self._in_doubt &= self._open.keys()
        return conclusions

    def _is_doubtful(self, pk: UUID) -> bool:
        return pk in self._in_doubt or self._open[pk].if_lost is not None

    def _rows(self, ids: Iterable[UUID]) -> dict[UUID, _Row]:
        asked = list(ids)
        if not asked:
            return {}
        rows = self._engine.tasks.filter(pk__in=asked).values_list("pk", *_Row._fields)
        return {pk: _Row(*values) for pk, *values in rows}

    def _explain(self, pk: UUID, row: _Row | None) -> Conclusion:
        """Find out whether an outcome that counts as lost was committed before, and the answer was lost."""
        over = self._open[pk]
        if not self._is_doubtful(pk):
            return over, None
        claimed, success, outcome = over.hold.claimed, over.if_lost, over.outcome
        if row is None:  # a task that has ended may have been pruned by now
            row = _Row(claimed.claim_number, Status.SUCCESSFUL if success else outcome.status, claimed.lost_count)
            if row.status not in FINAL:
                return over, None
        is_ours = row.claim_number == claimed.claim_number
        if success is not None and is_ours and row.status == Status.SUCCESSFUL:
            return success, Status.SUCCESSFUL
        # A claim ends by a commit of its holder, or by a rescue, which counts a loss.
        is_taken = row.lost_count > claimed.lost_count or (is_ours and row.status == Status.RUNNING)
        if is_taken or pk not in self._in_doubt:
            return over, None
        return over, Status.CANCELLED if is_ours and row.status == Status.CANCELLED else outcome.status

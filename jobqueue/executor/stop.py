"""The end of the loop: when nothing is left to do, and what it releases if it cannot wait."""

from __future__ import annotations

from uuid import UUID

import django.db

from jobqueue.executor.callbacks import ResultCallbacks
from jobqueue.executor.claims import Claimer
from jobqueue.executor.database.connection import GuardedConnection
from jobqueue.executor.maintenance import Maintenance
from jobqueue.executor.outcomes import Outcomes
from jobqueue.executor.running.attempt import ExecutorIdentity
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.settings import ExecutorSettings

NO_WORK_SECONDS = 1.0  # --burst ends when no task is due so soon
LAST_TRIES = 6  # of a stop, to release the last claims while the database is unreachable: some three seconds


class Stop:
    """Knows what was asked for, and when the loop is over. Other threads only set the first four attributes."""

    def __init__(
        self,
        settings: ExecutorSettings,
        identity: ExecutorIdentity,
        running_tasks: RunningTasks,
        connection: GuardedConnection,
        claims: Claimer,
        outcomes: Outcomes,
        callbacks: ResultCallbacks,
        maintenance: Maintenance,
    ) -> None:
        self.is_stopping = False  # claim nothing more
        self.is_last = False  # claim nothing more, and wait for what runs without limit (--max-memory)
        self.is_abandoned = False  # wait for no body
        self.abandoned_tasks: set[UUID] = set()  # bodies that do not stop
        self._settings, self._identity, self._running_tasks = settings, identity, running_tasks
        self._connection, self._claims, self._outcomes = connection, claims, outcomes
        self._callbacks, self._maintenance = callbacks, maintenance
        self._has_released_all = False

    def is_over(self, tries: int) -> bool:
        """Return whether nothing is left to wait for. tries: how often in a row the database was unreachable."""
        if self._has_released_all:
            return True
        running = self._running_tasks.snapshot().keys() - self.abandoned_tasks
        if running or self._outcomes.has_completed or self._running_tasks.has_completed or self._callbacks.backlog:
            return False
        if self._maintenance.may_have_unknown_claims and tries < LAST_TRIES:
            return False
        if self.is_stopping or self.is_last or self._claims.number == self._settings.max_tasks:
            return True
        awaiting_code = self._claims.awaiting_code
        if not (self._settings.burst and self._claims.policy.is_satisfied and awaiting_code.has_looked):
            return False
        return not awaiting_code.fitting and self._has_no_work_left()

    def _has_no_work_left(self) -> bool:
        try:
            with self._connection:
                has_no_work_left = self._identity.engine.queues.has_no_work_left(self._settings.queues, NO_WORK_SECONDS)
        except django.db.Error:
            return False  # the next turn meets the same outage, and waits for its end
        if not has_no_work_left:
            self._claims.policy.claim_soon()
        return has_no_work_left

    def release_all(self) -> None:
        """Release the claims of all bodies that still run. Raises django.db.Error."""
        self._running_tasks.count_starts(of_all=True)
        identity = self._identity
        identity.engine.commits.release_unknown_claims(identity.executor_id, self.abandoned_tasks)
        self._running_tasks.clear()
        self._has_released_all = True

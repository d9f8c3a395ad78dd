"""Make the rows of schedules agree with the declarations of this code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobqueue.declarations.schedules import Declaration, compute_digest, declarations
from jobqueue.engine import LOCK_WAIT, Engine, LockTimeout, is_silent, silent_seconds, with_heartbeat
from jobqueue.models import Schedule, ScheduleDeployment
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.text import printable

logger = safe_logger(__name__)

VERSION = "schedules"  # name of the digest among the versions of an executor
MAX_START_TIME = timedelta(hours=1)  # from `migrate` to the start of executors with the same code


@dataclass(frozen=True)
class DeclaredSchedules:
    """The usable declarations of this code for one backend. The others are errors of `manage.py check`."""

    declarations: Mapping[str, Declaration]  # by name
    digest: str  # changes with the declarations
    # The names of the other declarations. Their rows stay as they are, because only this host may be unable to use
    # them: it may lack a time zone.
    unusable: frozenset[str] = frozenset()

    @classmethod
    def of(cls, backend: str) -> DeclaredSchedules:
        own = [declaration for declaration in declarations() if declaration.backend == backend]
        usable = [declaration for declaration in own if not [*declaration.problems()]]
        by_name = {declaration.name: declaration for declaration in reversed(usable)}  # of two with one name, the first
        unusable = frozenset(str(declaration.name) for declaration in own) - by_name.keys()
        return cls(by_name, compute_digest(by_name.values()), unusable)

    def synchronize(self, engine: Engine) -> bool:
        """
        Write the declarations, unless newer code has written its own. Return whether rows may have changed.

        A set that was never seen is newer than all others. A set that was seen takes over only from one that no
        executor uses. So old and new code can run side by side during a deploy, and one can go back to old code.
        Locks: a row of the backend, so that sessions decide one after the other, and the schedules that change. If
        another session has locked one for longer than LOCK_WAIT, nothing changes, and the caller tries again later.
        """
        if self._is(newest_set(engine)):
            return False
        try:
            with engine.db.transaction(), engine.db.lock_timeout(LOCK_WAIT):
                return self._take_over(engine)
        except LockTimeout as error:
            logger.info("schedules.deferred error=%s", printable(str(error)))
            return False

    def _take_over(self, engine: Engine) -> bool:
        engine.schedules.lock_sets()  # the others are read in later statements
        current, was_seen = newest_set(engine), engine.schedules.sets().filter(digest=self.digest).exists()
        if self._is(current) or (current and was_seen and is_in_use(engine, current)):
            return False
        self.write(engine)
        engine.schedules.apply_set(self.digest)
        return True

    def _is(self, applied: ScheduleDeployment | None) -> bool:
        return applied is not None and applied.digest == self.digest

    def write(self, engine: Engine) -> None:
        """Write the declarations, whatever other code has written. Locks: the schedules that change."""
        rows = {row.name: row for row in engine.db.schedules}
        declared_rows = [row for row in rows.values() if row.declared_at and row.retired_at is None]
        kept = self.declarations.keys() | self.unusable
        gone = [row.pk for row in declared_rows if row.name not in kept]
        columns = {name: declaration.columns() for name, declaration in self.declarations.items()}
        changed = [name for name in columns if name not in rows or differs(rows[name], columns[name])]
        # In the order of their ids, in which all verbs lock rows.
        affected = [*gone, *(rows[name].pk for name in changed if name in rows)]
        list(engine.db.with_lock(engine.db.schedules.filter(pk__in=affected).order_by("pk"), wait=True))
        engine.schedules.retire(gone)
        for name in changed:
            engine.schedules.save(name, columns[name])


def newest_set(engine: Engine) -> ScheduleDeployment | None:
    """Return the set that was applied last."""
    return engine.schedules.sets().filter(applied_at__isnull=False).order_by("-pk").first()


def is_in_use(engine: Engine, applied: ScheduleDeployment) -> bool:
    """
    Return whether an executor with this set is alive, or may be about to start.

    `migrate` applies a set before its executors start.
    """
    users = with_heartbeat(engine.db.executors.filter(**{f"versions__{VERSION}": applied.digest}))
    newest, now = users.order_by("-heartbeat__at").first(), engine.db.now()
    timeout_seconds = engine.options.heartbeat_timeout
    if newest is not None:
        return not is_silent(silent_seconds(newest, now), timeout_seconds)
    silence = timedelta(seconds=timeout_seconds)
    return applied.applied_at is not None and applied.applied_at + MAX_START_TIME > now - silence


def differs(row: Schedule, columns: Mapping[str, Any]) -> bool:
    return any(getattr(row, name) != value for name, value in columns.items())

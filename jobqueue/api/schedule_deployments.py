"""Make the rows of schedules agree with the declarations of this code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobqueue.declared_schedules import Declaration, declarations, digest_of
from jobqueue.engine.engine import Engine
from jobqueue.models import Executor, Schedule, ScheduleDeployment

VERSION = "schedules"  # name of the digest among the versions of an executor


@dataclass(frozen=True)
class DeclaredSchedules:
    """The usable declarations of this code for one backend. The others are errors of `manage.py check`."""

    declarations: Mapping[str, Declaration]
    digest: str

    @classmethod
    def of(cls, backend: str) -> DeclaredSchedules:
        found = [each for each in declarations() if each.backend == backend and not [*each.problems()]]
        by_name = {each.name: each for each in reversed(found)}  # of two with one name, the first
        return cls(by_name, digest_of(by_name.values()))

    def synchronize(self, engine: Engine) -> bool:
        """
        Write the declarations, unless newer code has written its own. Return whether rows may have changed.

        A set that was never seen is newer than all others. A set that was seen takes over only when no living executor
        has the current one. So old and new code can run side by side during a deploy, and one can go back to old code.
        Locks: the sets of the backend, so that sessions decide one after the other.
        """
        if self._is_current(engine):
            return False
        with engine.transaction():
            sets = ScheduleDeployment.objects.using(engine.database).filter(backend=engine.alias)
            is_known = sets.filter(digest=self.digest).exists()
            sets.bulk_create([ScheduleDeployment(backend=engine.alias, digest=self.digest)], ignore_conflicts=True)
            known = list(engine.db.with_lock(sets.order_by("pk"), wait=True))
            if self._is_current(engine) or (is_known and has_executor(engine, newest(known).digest)):
                return False
            self._write(engine)
            sets.filter(digest=self.digest).update(applied_at=engine.now())
        return True

    def _is_current(self, engine: Engine) -> bool:
        sets = ScheduleDeployment.objects.using(engine.database).filter(backend=engine.alias, applied_at__isnull=False)
        last = sets.order_by("-applied_at", "-pk").values_list("digest", flat=True).first()
        return last == self.digest

    def _write(self, engine: Engine) -> None:
        rows = {row.name: row for row in engine.db.schedules}
        gone = [row.pk for row in rows.values() if row.declared_at and row.name not in self.declarations]
        engine.schedules.retire(gone)
        for name, declaration in self.declarations.items():
            columns = declaration.columns()
            if name not in rows or differs(rows[name], columns):
                engine.schedules.save(name, columns)


def newest(sets: list[ScheduleDeployment]) -> ScheduleDeployment:
    """Return the set that was applied last."""
    applied = [(each.applied_at, each.pk, each) for each in sets if each.applied_at is not None]
    return max(applied)[2] if applied else sets[0]


def has_executor(engine: Engine, digest: str) -> bool:
    """Return whether an executor with these declarations is alive."""
    since = engine.now() - timedelta(seconds=engine.options.heartbeat_timeout)
    alive = engine.executors.filter(heartbeat__gt=since).exclude(state=Executor.State.STOPPED)
    return any(versions.get(VERSION) == digest for versions in alive.values_list("versions", flat=True))


def differs(row: Schedule, columns: Mapping[str, Any]) -> bool:
    return any(getattr(row, name) != value for name, value in columns.items())

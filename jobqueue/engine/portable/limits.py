"""The limits of running tasks per queue, over all executors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from django.db.models import Q

from jobqueue.engine.clock import now_plus
from jobqueue.engine.portable.database import Part
from jobqueue.records import ClaimRequest


class Limits(Part):
    def limited_queues(self) -> list[str]:
        """Name the queues that have a max_running."""
        return sorted(self.db.queues.filter(max_running__isnull=False).values_list("name", flat=True))

    def within_limits(self, request: ClaimRequest) -> tuple[ClaimRequest, frozenset[str]]:
        """
        Reduce a request to the free places of limited queues. Return the queues that are skipped, too.

        The running tasks are counted in a later statement than the lock. In a single statement, two executors would
        both use the snapshot from before their claims. Rows that others have locked are skipped, so that no executor
        delays the commits of another.
        Locks: the rows of limited queues FOR NO KEY UPDATE, in order of name, until the claim commits.
        """
        rows = self.lock_queues(request.limited)
        limits = {name: most for name, most in rows.items() if most is not None}
        running = self.count_running(limits) if limits else {}
        free = {name: max(0, most - running.get(name, 0)) for name, most in limits.items()}
        most = {
            **request.max_per_queue,
            **{name: min(count, request.max_per_queue.get(name, count)) for name, count in free.items()},
        }
        return replace(request, max_per_queue=most, limited=list(rows)), frozenset(request.limited) - rows.keys()

    def lock_queues(self, names: Collection[str]) -> dict[str, int | None]:
        rows = self.db.with_lock(self.db.queues.filter(name__in=names).order_by("name"))
        return dict(rows.values_list("name", "max_running"))

    def count_running(self, most: Mapping[str, int]) -> dict[str, int]:
        """Count the running tasks of some queues, up to a maximum for each."""
        running = self.db.tasks.running()
        return {name: running.filter(queue_name=name)[:limit].count() for name, limit in most.items()}

    def paused(self) -> set[str]:
        paused = Q(resume_at__isnull=True) | Q(resume_at__gt=now_plus()), Q(paused_at__isnull=False)
        return set(self.db.queues.filter(*paused).values_list("name", flat=True))

    def full(self) -> set[str]:
        """Name the queues that have reached their max_running."""
        rows = self.db.queues.filter(max_running__isnull=False).values_list("name", "max_running")
        limits = {name: most for name, most in rows if most is not None}
        running = self.count_running(limits) if limits else {}
        return {name for name, most in limits.items() if running.get(name, 0) >= most}

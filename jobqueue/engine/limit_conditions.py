"""Which tasks count for a limit by key, which wait for it, and which must be admitted before they are READY."""

from __future__ import annotations

from django.db.models import Case, Q, Value, When

from jobqueue.values.limit_keys import AFTER_SEPARATOR, SEPARATOR, split_key
from jobqueue.values.states import LimitKind, Status

# A task that must be admitted before it is READY. It becomes BLOCKED where another task becomes READY.
IS_BLOCKED = Q(rate_key__isnull=False) | Q(concurrency_key__isnull=False, counts_while_waiting=False)
WAITS_FOR_CONCURRENCY = Q(status=Status.BLOCKED, counts_while_waiting=False)
WAITS_FOR_RATE = Q(Q(concurrency_key__isnull=True) | Q(counts_while_waiting=True), status=Status.BLOCKED)

# The body has begun in this attempt, or in one that was not counted: after a conflict, a stop, a lost executor.
HAS_BEGUN = Q(attempts__gt=0) | Q(stale_polls__gt=0) | Q(polls=0) & ~Q(worker_ids=[])

# Admitted by a rate, but its start is not counted yet: it may start at any moment.
IS_STARTING = Q(status=Status.READY) | Q(status=Status.RUNNING, start_counted_at__isnull=True)

# The tasks that the index of a kind of limit contains: of a concurrency limit all live tasks, of a rate those that are
# starting or wait for it.
INDEXED = {
    LimitKind.CONCURRENCY: Q(concurrency_key__isnull=False, finished_at__isnull=True),
    LimitKind.RATE: Q(rate_key__isnull=False) & (IS_STARTING | WAITS_FOR_RATE),
}

# Among those, the tasks that wait for the limit. `status = 'BLOCKED'` also matches the index of all tasks that wait.
# The planner prefers that one for a table that it has never analyzed.
IS_BLOCKED_STATUS = Q(status__range=(Status.BLOCKED, Status.BLOCKED))
IS_WAITING = {
    LimitKind.CONCURRENCY: IS_BLOCKED_STATUS & Q(counts_while_waiting=False),
    LimitKind.RATE: IS_BLOCKED_STATUS,
}

# The tasks that count. For a rate, the starts in the window count as well.
IS_ACTIVE = {
    LimitKind.CONCURRENCY: Q(status__in=[Status.READY, Status.RUNNING]) | Q(counts_while_waiting=True),
    LimitKind.RATE: IS_STARTING,
}


def tasks_of_limit(kind: LimitKind, key: str) -> Q:
    """Return the condition for tasks with a key. Without text after the colon, for tasks with any key of the limit."""
    column = f"{kind}_key"
    name, own_key = split_key(key)
    if own_key:
        return Q(**{column: key})
    return Q(**{f"{column}__gte": f"{name}{SEPARATOR}", f"{column}__lt": f"{name}{AFTER_SEPARATOR}"})


def ready_status() -> Case:
    """Return the status of tasks that may run now, for an update: READY, or BLOCKED if they must be admitted."""
    return Case(When(IS_BLOCKED, then=Value(Status.BLOCKED.value)), default=Value(Status.READY.value))

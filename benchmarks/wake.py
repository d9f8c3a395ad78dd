"""
Measure how soon a message wakes one of many suspended actors: python -m benchmarks.wake

The time runs from the sender's INSERT, by the database's clock, to the first line of poll(). Both run on this machine.
One executor runs with the defaults of `run_executors` and is otherwise idle.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from django.db import connection

from benchmarks import cluster, workers

AIM_SECONDS = 0.050
LONGEST_SECONDS = 60.0
CHECK_SECONDS = 0.1

FILL = """
    INSERT INTO jobqueue_task (
        id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, inner_state, status,
        claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at
    )
    SELECT gen_random_uuid(), 'default', 'default', %s, 0, now(), '[]', '{}', '{}', '{}', '{"waits": []}', 'SUSPENDED',
        1, '[]', 0, 4, 1, 0, '[]', now()
    FROM generate_series(1, %s)
"""
WAITS = """
    SELECT (inner_state->'waits'->>0)::float8 FROM jobqueue_task
    WHERE id = ANY(%s) AND jsonb_array_length(inner_state->'waits') = 1
"""


def measure(sleepers: int, messages: int, gap_seconds: float) -> list[float]:
    from benchmarks.actors import TimedSleeper
    from jobqueue import send

    with connection.cursor() as cursor:
        cursor.execute(FILL, [TimedSleeper.task.task_type, sleepers])
        cursor.execute("VACUUM ANALYZE jobqueue_task")
        cursor.execute("SELECT id FROM jobqueue_task ORDER BY random() LIMIT %s", [messages])
        pks = [pk for (pk,) in cursor.fetchall()]
    with workers.executors(1):
        for pk in pks:
            send(pk)
            time.sleep(gap_seconds)
        return waits_of(pks)


def waits_of(pks: Sequence[object]) -> list[float]:
    """Return the waits of all chosen actors, after each was polled."""
    began_at = time.monotonic()
    while time.monotonic() - began_at < LONGEST_SECONDS:
        with connection.cursor() as cursor:
            cursor.execute(WAITS, [list(pks)])
            waits = [wait for (wait,) in cursor.fetchall()]
        if len(waits) == len(pks):
            return sorted(waits)
        time.sleep(CHECK_SECONDS)
    raise RuntimeError(f"{len(waits)} of {len(pks)} actors were polled within {LONGEST_SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleepers", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between messages")
    options = parser.parse_args()
    with cluster.prepared_cluster():
        waits = measure(options.sleepers, options.messages, options.gap)
        print(
            f"\n{options.messages} of {options.sleepers} suspended actors, a message every {options.gap * 1000:g} ms, ",
            end="",
        )
        print(f"PostgreSQL {cluster.version()}, fsync on\n")
    for share in (0.5, 0.9, 0.99, 1.0):
        print(f"{share:5.0%} polled within {waits[round(share * (len(waits) - 1))] * 1000:7.1f} ms")
    print(f"\nAim: a median of {AIM_SECONDS * 1000:g} ms; reached: {statistics.median(waits) * 1000:.1f} ms")


if __name__ == "__main__":
    main()

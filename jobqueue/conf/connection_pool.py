"""Compare the connections that an executor opens with those that Django's pool has."""

from __future__ import annotations

from typing import Any

CONNECTIONS_BESIDE_SLOTS = 4  # of an executor: loop, heartbeat, listener, and one that reads after a notification
CONNECTIONS_FOR_ASYNC_TASKS = 32  # threads for async tasks that call the ORM
CONNECTIONS_OF_AN_EXECUTOR = 8 + CONNECTIONS_BESIDE_SLOTS  # with the default number of threads


def pool_size(pool: Any) -> int | None:
    """Return the maximum size of Django's OPTIONS["pool"], None without a pool. The default of psycopg is 4."""
    match pool:
        case None | False:
            return None
        case {"max_size": int(size)} | {"min_size": int(size)}:
            return size
        case _:
            return 4

"""Cursors of psycopg that tell what is executed with them, by whoever has the driver's connection and not Django's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from psycopg import ServerCursor

Hear = Callable[[Any, Any], None]


def tell(raw: Any, hear: Hear) -> None:
    """Let a connection make cursors that call hear(cursor, statement) before each statement."""
    raw.cursor_factory = _telling(raw.cursor_factory, hear)
    raw.server_cursor_factory = _telling(raw.server_cursor_factory, hear)


def settings_of(raw: Any) -> tuple[Any, ...]:
    """Give what the driver keeps for all who use a connection."""
    return raw.isolation_level, raw.read_only, raw.deferrable, raw.row_factory, raw.cursor_factory


def is_of_server(cursor: Any) -> bool:
    """Whether the server keeps its rows, and may keep them beyond the transaction."""
    return isinstance(cursor, ServerCursor)


@cache
def _telling(kind: Any, hear: Hear) -> Any:
    if hasattr(kind, "hears"):  # of a pool, which had it before
        return kind

    class Telling(kind):  # type: ignore[misc]
        hears = True

        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            hear(self, query)
            return super().execute(query, *args, **kwargs)

        def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            hear(self, query)
            return super().executemany(query, *args, **kwargs)

        def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            hear(self, query)
            return super().stream(query, *args, **kwargs)

        def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
            hear(self, statement)
            return super().copy(statement, *args, **kwargs)

    return Telling

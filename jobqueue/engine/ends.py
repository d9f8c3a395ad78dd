"""Tasks that end without an attempt's outcome. The API listens for them and sends the signals."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

from jobqueue.engine.database import Database
from jobqueue.values.states import Status

Listener = Callable[[Database, Collection[UUID], Status], None]

_listeners: list[Listener] = []


def listen_to_ends(listener: Listener) -> None:
    """Let a function hear of ends. It gets the backend's rows, the ids and the state, in the transaction."""
    _listeners.append(listener)


def ended(db: Database, ids: Collection[UUID], status: Status) -> None:
    """Tell listeners of tasks that the caller's transaction has ended."""
    if ids:
        for listener in _listeners:
            listener(db, ids, status)

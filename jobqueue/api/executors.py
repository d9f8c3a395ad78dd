"""Commands to executors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from uuid import UUID

from django.db import transaction

from jobqueue.engine import engine_for
from jobqueue.models import Executor
from jobqueue.records import Command


def command(executor_ids: Iterable[UUID | str], command: Command, *, backend: str = "default") -> int:
    """
    Ask executors to claim nothing more (PAUSE), to claim again (RESUME) or to stop gracefully (STOP).

    Each obeys within about a second, on any host. Its row's `state` shows what it does. Returns how many of them have
    not stopped yet. The command is written after the commit, because a transaction that locked an executor's row
    would block its heartbeat.
    """
    engine = engine_for(backend)
    ids = [UUID(str(pk)) for pk in executor_ids]
    active = engine.executors.filter(pk__in=ids).exclude(state=Executor.State.STOPPED).count()
    transaction.on_commit(partial(engine.command, ids, Command(command)), using=engine.database)
    return active

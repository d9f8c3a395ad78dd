"""The request of a running task: `self.request` of Celery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

METADATA = "celery"  # the member of a row's metadata with what its columns do not have


class CeleryRequest:
    """
    The facts of a run. Outside of a run, `called_directly` is true.

    It has more than 15 attributes because Celery's request has them.
    """

    id: str | None = None  # of the task
    task: str | None = None  # its name
    args: Any = ()
    kwargs: Any = None
    retries: int = 0
    is_eager: bool = False
    called_directly: bool = True
    delivery_info: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None
    hostname: str | None = None
    eta: Any = None
    expires: Any = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    chord: Any = None
    callbacks: Any = None
    errbacks: Any = None
    reply_to: str | None = None
    correlation_id: str | None = None
    timelimit: Any = None
    ignore_result: bool | None = None
    reported: tuple[str | None, Any] = (None, None)  # state and meta of the last update_state()
    max_retries: int | None = None  # of the last call of retry(); None: those of the task
    context: Any = None  # jobqueue's own, in an executor

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def update(self, *values: Any, **more: Any) -> None:
        """Change attributes."""
        vars(self).update(*values, **more)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return getattr(self, name, default)


_running: ContextVar[tuple[tuple[Any, CeleryRequest], ...]] = ContextVar("jobqueue_celery_running", default=())


def push(task: Any, request: CeleryRequest) -> None:
    """Make this the request of the task, until pop()."""
    _running.set((*_running.get(), (task, request)))


def pop() -> None:
    """Undo the last push()."""
    _running.set(_running.get()[:-1])


@contextmanager
def pushed(task: Any, request: CeleryRequest) -> Iterator[None]:
    """Run a block with this request."""
    push(task, request)
    try:
        yield
    finally:
        pop()


def innermost(task: Any = None) -> tuple[Any, CeleryRequest]:
    """Return the innermost running task, or that of the innermost run of a task, with its request."""
    for running, request in reversed(_running.get()):
        if task is None or running is task:
            return running, request
    return None, CeleryRequest()


_may_join: ContextVar[bool | None] = ContextVar("jobqueue_celery_may_join", default=None)


@contextmanager
def allow_join_result(may: bool = True) -> Iterator[None]:
    """Let a task wait for the result of another one: its thread is blocked."""
    token = _may_join.set(may)
    try:
        yield
    finally:
        _may_join.reset(token)


def will_block() -> bool:
    """Return whether get() would block the thread of a task."""
    may_join = _may_join.get()
    return innermost()[1].context is not None if may_join is None else not may_join

"""
Scenarios with polls that return a function. The function runs in the commit's transaction, which locks the task
first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

from django.db import transaction

from jobqueue.records import ClaimedTask, Outcome
from verification.interleavings.backend import (
    Decide,
    IsolatedBackend,
    and_send,
    spawn,
    succeed,
    succeed_and_cancel_children,
    suspend,
)
from verification.interleavings.stepper import ClientState, Script, rest

SetUp = Callable[[IsolatedBackend], Sequence[Script]]


def commit_in_function(backend: IsolatedBackend, claimed: ClaimedTask, result: Outcome) -> None:
    """Commit as a worker thread does. If another transaction holds a required row, roll back and start again."""
    for state in chain([ClientState.AFTER_COMMIT], repeat(ClientState.LAST)):
        with transaction.atomic():
            assert backend.engine.lock_claim(claimed)
            answer = backend.engine.commit([result], wait=True)
            if answer.unknown:
                transaction.set_rollback(True)
        again = backend._record_result([result], answer)
        backend._wake(answer)
        if not answer.unknown:
            backend.commit(*again)  # a poll that failed is committed without the function
            return
        rest(state)


def peers(backend: IsolatedBackend) -> Sequence[Script]:
    """Two tasks send to each other and suspend."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: commit_in_function(backend, a, and_send(suspend, b.id, "from-a")(a, ())),
        lambda: commit_in_function(backend, b, and_send(suspend, a.id, "from-b")(b, ())),
    ]


def peer_without_function(backend: IsolatedBackend) -> Sequence[Script]:
    """One of the two polls returns actions instead of a function."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: commit_in_function(backend, a, and_send(suspend, b.id, "from-a")(a, ())),
        lambda: backend.commit(and_send(suspend, a.id, "from-b")(b, ())),
    ]


def family(child_decides: Decide) -> SetUp:
    """A parent sends to its child, which ends or suspends."""

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        parent = backend.running("parent")
        child = backend.running("child", parent_id=parent.id)
        return [
            lambda: commit_in_function(backend, parent, and_send(suspend, child.id, "stop")(parent, ())),
            lambda: commit_in_function(backend, child, child_decides(child, ())),
        ]

    return set_up


def ending_with_children(backend: IsolatedBackend) -> Sequence[Script]:
    """A child spawns a child at the moment its parent cancels it."""
    parent = backend.running("parent")
    child = backend.running("child", parent_id=parent.id)
    return [
        lambda: commit_in_function(backend, parent, succeed_and_cancel_children(parent, ())),
        lambda: commit_in_function(backend, child, spawn(child, ())),
    ]


def cancelling_a_tree(backend: IsolatedBackend) -> Sequence[Script]:
    parent = backend.suspended("parent")
    child = backend.running("child", parent_id=parent)
    return [
        lambda: backend.cancel(parent, tree=True),
        lambda: commit_in_function(backend, child, succeed(child, ())),
    ]

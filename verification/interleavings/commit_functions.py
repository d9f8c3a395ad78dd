"""Polls that return a function: it runs in the committing transaction, which holds the task's row from its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

from django.db import transaction

from jobqueue.records import ClaimedTask, Outcome
from verification.interleavings.stepper import Place, Script, rest
from verification.interleavings.world import Decide, World, done, done_with_children, spawn, suspend, telling

SetUp = Callable[[World], Sequence[Script]]


def commit_in_function(world: World, claimed: ClaimedTask, result: Outcome) -> None:
    """What a worker does: where a row is held that it cannot do without, all is undone and begins again."""
    for place in chain([Place.RESTING], repeat(Place.IDLE)):
        with transaction.atomic():
            assert world.engine.lock_claim(claimed)
            answer = world.engine.commit([result], wait=True)
            if answer.unknown:
                transaction.set_rollback(True)
        again = world._note_answer([result], answer)
        world._follow_up(answer)
        if not answer.unknown:
            world.commit(*again)  # a poll that has failed by it goes the ordinary way
            return
        rest(place)


def peers(world: World) -> Sequence[Script]:
    """Each tells the other and suspends."""
    a, b = world.running("a"), world.running("b")
    return [
        lambda: commit_in_function(world, a, telling(suspend, b.id, "from-a")(a, ())),
        lambda: commit_in_function(world, b, telling(suspend, a.id, "from-b")(b, ())),
    ]


def peer_of_a_pulse(world: World) -> Sequence[Script]:
    """The other's poll returned actions, as most do."""
    a, b = world.running("a"), world.running("b")
    return [
        lambda: commit_in_function(world, a, telling(suspend, b.id, "from-a")(a, ())),
        lambda: world.commit(telling(suspend, a.id, "from-b")(b, ())),
    ]


def family(child_decides: Decide) -> SetUp:
    """A parent tells its child something, which ends, or goes on."""

    def set_up(world: World) -> Sequence[Script]:
        parent = world.running("parent")
        child = world.running("child", parent_id=parent.id)
        return [
            lambda: commit_in_function(world, parent, telling(suspend, child.id, "stop")(parent, ())),
            lambda: commit_in_function(world, child, child_decides(child, ())),
        ]

    return set_up


def ending_with_children(world: World) -> Sequence[Script]:
    """Its child has a child in the same moment."""
    parent = world.running("parent")
    child = world.running("child", parent_id=parent.id)
    return [
        lambda: commit_in_function(world, parent, done_with_children(parent, ())),
        lambda: commit_in_function(world, child, spawn(child, ())),
    ]


def cancelling_a_tree(world: World) -> Sequence[Script]:
    parent = world.suspended("parent")
    child = world.running("child", parent_id=parent)
    return [
        lambda: world.cancel(parent, tree=True),
        lambda: commit_in_function(world, child, done(child, ())),
    ]

"""Who meets whom: each scenario makes its rows and gives the scripts of its actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verification.interleavings import commit_functions
from verification.interleavings.stepper import Script
from verification.interleavings.world import (
    Decide,
    World,
    done,
    done_with_children,
    give_up,
    leave,
    retry,
    sleep,
    spawn,
    suspend,
    telling,
)

SetUp = Callable[[World], Sequence[Script]]


@dataclass(frozen=True)
class Scenario:
    name: str
    set_up: SetUp
    actors: int = 2


# --- a view sends to a task that is being polled


def sending(decide: Decide, *, wait: bool = False) -> SetUp:
    def set_up(world: World) -> Sequence[Script]:
        task = world.add("task")
        return [lambda: world.send(task, "m"), lambda: world.poll("task", decide=decide, wait=wait)]

    return set_up


def sending_to_one_that_leaves_mail(world: World) -> Sequence[Script]:
    task = world.add("task")
    world.send(task, "not-yet")
    return [lambda: world.send(task, "m"), lambda: world.poll("task", decide=leave)]


def sending_beside_two_polls(world: World) -> Sequence[Script]:
    task = world.add("task")

    def poll_twice() -> None:
        world.poll("task", decide=suspend)
        world.poll("task", decide=done)

    return [lambda: world.send(task, "m"), poll_twice]


def sending_beside_pulses(world: World) -> Sequence[Script]:
    """Commit and claim share a transaction: it may claim again what it has just made READY."""
    claimed = world.running("task")

    def loop() -> None:
        for again in world.loop(suspend(claimed, world.read(claimed.id)), "task"):
            world.commit(suspend(again, world.read(again.id)))

    return [lambda: world.send(claimed.id, "m"), loop]


def sending_from_two_sides(world: World) -> Sequence[Script]:
    """The lower id may be committed after the higher one was read."""
    task = world.add("task")

    def send_and_poll() -> None:
        world.insert(task, "m2")  # it is READY: nobody need wake it
        world.poll("task", decide=suspend)

    return [lambda: world.send(task, "m1"), send_and_poll]


def waking_beside_two_pollers(world: World) -> Sequence[Script]:
    task = world.suspended("task")

    def poll() -> None:
        world.poll("task", decide=suspend)

    return [lambda: world.send(task, "m"), poll, poll]


def sending_to_one_whose_alarm_rings(world: World) -> Sequence[Script]:
    task = world.suspended("task", wake_after_seconds=0.0)

    def ring_and_poll() -> None:
        world.engine.wake_due()
        world.poll("task", decide=suspend)

    return [lambda: world.send(task, "m"), ring_and_poll]


def sweeping(world: World) -> Sequence[Script]:
    """The net under all this must not break it."""
    task = world.add("task")

    def sweep() -> None:
        world.engine.sweep()
        world.poll("task", decide=suspend)

    return [lambda: world.send(task, "m"), lambda: world.poll("task", decide=suspend), sweep]


# --- tasks that write to each other


def child_ends(child_decides: Decide, *, wait: bool = False) -> SetUp:
    def set_up(world: World) -> Sequence[Script]:
        parent = world.running("parent")
        child = world.running("child", parent_id=parent.id)
        return [
            lambda: world.commit(child_decides(child, ()), wait=wait),
            lambda: world.commit(suspend(parent, world.read(parent.id)), wait=wait),
        ]

    return set_up


def peers(*, wait: bool) -> SetUp:
    """Each tells the other and suspends: a commit locks both rows."""

    def set_up(world: World) -> Sequence[Script]:
        a, b = world.running("a"), world.running("b")
        return [
            lambda: world.commit(telling(suspend, b.id, "from-a")(a, ()), wait=wait),
            lambda: world.commit(telling(suspend, a.id, "from-b")(b, ()), wait=wait),
        ]

    return set_up


def telling_one_that_waits(world: World) -> Sequence[Script]:
    """What a body on the worker's own connection does: it waits for the row, and looks when it has it."""
    a, b = world.running("a"), world.running("b")
    return [
        lambda: world.commit(telling(suspend, b.id, "from-a")(a, ())),
        lambda: world.commit(suspend(b, ()), wait=True),
    ]


def families(*, wait: bool) -> SetUp:
    """Two executors commit a parent of one family and a child of the other: parents tell children, children end."""

    def set_up(world: World) -> Sequence[Script]:
        mother, father = world.running("mother"), world.running("father")
        daughter = world.running("daughter", parent_id=mother.id)
        son = world.running("son", parent_id=father.id)
        to_daughter, to_son = telling(suspend, daughter.id, "mother"), telling(suspend, son.id, "father")
        return [
            lambda: world.commit(to_daughter(mother, ()), done(son, ()), wait=wait),
            lambda: world.commit(to_son(father, ()), done(daughter, ()), wait=wait),
        ]

    return set_up


# --- one claim and the next


def owners(decide: Decide) -> SetUp:
    """An executor that was taken for dead commits beside the rescue and the next owner."""

    def set_up(world: World) -> Sequence[Script]:
        claimed = world.lost("task")
        world.send(claimed.id, "m")
        mail = world.read(claimed.id)

        def rescue_and_poll() -> None:
            world.rescue()
            world.poll("task", decide=suspend)

        return [lambda: world.commit(decide(claimed, mail)), rescue_and_poll]

    return set_up


def beating_again(decide: Decide) -> SetUp:
    """An executor that was silent for long beats, and commits what it is told that it holds, beside a rescue."""

    def set_up(world: World) -> Sequence[Script]:
        claimed = world.lost("task")
        world.send(claimed.id, "m")
        mail = world.read(claimed.id)

        def beat_and_commit() -> None:
            if world.still_holds(claimed):
                world.commit(decide(claimed, mail))

        def rescue_and_poll() -> None:
            world.read(claimed.id)  # until here everybody has come before any step: rescue() is to see who has beaten
            world.rescue()
            world.poll("task", decide=suspend)

        return [beat_and_commit, rescue_and_poll]

    return set_up


def losing_a_child(world: World) -> Sequence[Script]:
    """Its last loss ends a child FAILED, while its executor, not dead at all, commits its end."""
    parent = world.suspended("parent")
    child = world.lost("child", parent_id=parent)
    world.engine.tasks.filter(pk=child.id).update(executor_losses=2)
    return [lambda: world.commit(done(child, ())), world.rescue]


def claiming(world: World) -> Sequence[Script]:
    for _ in range(3):
        world.add("task")

    def claim_and_commit() -> None:
        world.commit(*[done(claimed, ()) for claimed in world.claim("task", limit=2)])

    return [claim_and_commit, claim_and_commit]


# --- cancel


def cancelling(decide: Decide) -> SetUp:
    def set_up(world: World) -> Sequence[Script]:
        task = world.add("task")
        world.send(task, "m")
        return [lambda: world.cancel(task), lambda: world.poll("task", decide=decide)]

    return set_up


def cancelling_a_child(decide: Decide, *, wait: bool = False) -> SetUp:
    def set_up(world: World) -> Sequence[Script]:
        parent = world.suspended("parent")
        child = world.add("child", parent_id=parent)
        return [lambda: world.cancel(child, wait=wait), lambda: world.poll("child", decide=decide)]

    return set_up


def sending_and_cancelling(world: World) -> Sequence[Script]:
    task = world.add("task")
    return [
        lambda: world.send(task, "m"),
        lambda: world.poll("task", decide=suspend),
        lambda: world.cancel(task),
    ]


def cancelling_a_tree(*, wait: bool = False) -> SetUp:
    """A child is born while its family ends."""

    def set_up(world: World) -> Sequence[Script]:
        parent = world.suspended("parent")
        world.add("child", parent_id=parent)
        return [lambda: world.cancel(parent, tree=True, wait=wait), lambda: world.poll("child", decide=spawn)]

    return set_up


def ending_with_children(child_decides: Decide, *, wait: bool = False) -> SetUp:
    def set_up(world: World) -> Sequence[Script]:
        parent = world.running("parent")
        world.add("child", parent_id=parent.id)
        world.suspended("sleeping child", parent_id=parent.id)
        return [
            lambda: world.commit(done_with_children(parent, world.read(parent.id)), wait=wait),
            lambda: world.poll("child", decide=child_decides, wait=wait),
        ]

    return set_up


# --- another life, and the end of it


def requeueing_beside_a_send(world: World) -> Sequence[Script]:
    task = world.ended("task")
    return [lambda: world.requeue(task), lambda: world.send(task, "m")]


def requeueing_beside_a_send_and_a_poll(world: World) -> Sequence[Script]:
    task = world.ended("task")
    return [
        lambda: world.requeue(task),
        lambda: world.send(task, "m"),
        lambda: world.poll("task", decide=suspend),
    ]


def requeueing_twice(world: World) -> Sequence[Script]:
    task = world.ended("task")

    def requeue_and_cancel() -> None:
        world.requeue(task)
        world.cancel(task)

    return [requeue_and_cancel, lambda: world.requeue(task)]


def requeueing_a_child(world: World) -> Sequence[Script]:
    """It has told its parent before."""
    parent = world.running("parent")
    child = world.ended("child", parent_id=parent.id)
    world.requeue(child)
    return [
        lambda: world.poll("child", decide=done),
        lambda: world.commit(suspend(parent, world.read(parent.id))),
    ]


def requeueing_a_key(world: World) -> Sequence[Script]:
    task = world.ended("task", key="k")
    return [lambda: world.requeue(task), lambda: world.enqueue("other", "k")]


def enqueueing_a_key(world: World) -> Sequence[Script]:
    return [lambda: world.enqueue("a", "k"), lambda: world.enqueue("b", "k")]


def submitting(*keys: str) -> SetUp:
    """One submission that comes twice at once, of many tasks in another order."""

    def set_up(world: World) -> Sequence[Script]:
        return [lambda: world.submit("a", *keys), lambda: world.submit("b", *keys[::-1])]

    return set_up


def submitting_beside_a_prune(world: World) -> Sequence[Script]:
    """Who has the key has ended, and goes."""
    world.submit("task", "k")
    world.poll("task", decide=give_up)
    return [world.prune, lambda: world.submit("again", "k")]


def pruning_beside_a_send(world: World) -> Sequence[Script]:
    """The receiver ends and goes while the sender's transaction is open."""
    claimed = world.running("task")

    def end_and_prune() -> None:
        world.commit(give_up(claimed, ()))
        world.prune()

    return [lambda: world.send(claimed.id, "m"), end_and_prune]


def pruning_beside_requeue(world: World) -> Sequence[Script]:
    task = world.ended("task")
    return [world.prune, lambda: world.requeue(task)]


def pruning_beside_a_child(world: World) -> Sequence[Script]:
    parent = world.ended("parent")
    child = world.running("child", parent_id=parent)
    return [world.prune, lambda: world.commit(done(child, ()))]


def requeueing_a_parent(world: World) -> Sequence[Script]:
    """It missed the end of its child, or does not."""
    parent = world.ended("parent")
    child = world.running("child", parent_id=parent)

    def requeue_and_poll() -> None:
        world.requeue(parent)
        world.poll("parent", decide=suspend)

    return [requeue_and_poll, lambda: world.commit(done(child, ()))]


def pruning_twice(world: World) -> Sequence[Script]:
    for _ in range(2):
        world.ended("task")
    return [world.prune, world.prune]


# --- a message that comes twice


def repeating(world: World) -> Sequence[Script]:
    task = world.add("task")

    def send_and_poll() -> None:
        world.send(task, "m", dedupe_key="k")
        world.poll("task", decide=suspend)

    return [lambda: world.send(task, "m", dedupe_key="k"), send_and_poll]


def repeating_what_was_taken_back(world: World) -> Sequence[Script]:
    task = world.suspended("task")
    return [
        lambda: world.take_back_a_message(task, "taken-back", dedupe_key="k"),
        lambda: world.send(task, "m", dedupe_key="k"),
    ]


def repeating_what_is_being_read(world: World) -> Sequence[Script]:
    task = world.add("task")
    world.send(task, "m", dedupe_key="k")
    return [lambda: world.send(task, "m", dedupe_key="k"), lambda: world.poll("task", decide=suspend)]


def repeating_beside_a_poll(world: World) -> Sequence[Script]:
    task = world.suspended("task")
    return [
        lambda: world.send(task, "m", dedupe_key="k"),
        lambda: world.send(task, "m", dedupe_key="k"),
        lambda: world.poll("task", decide=suspend),
    ]


ALL = [
    Scenario("send-x-suspend", sending(suspend)),
    Scenario("send-x-suspend-waiting", sending(suspend, wait=True)),
    Scenario("send-x-sleep", sending(sleep)),
    Scenario("send-x-done", sending(done)),
    Scenario("send-x-retry", sending(retry)),
    Scenario("send-x-leave", sending_to_one_that_leaves_mail),
    Scenario("send-x-two-polls", sending_beside_two_polls),
    Scenario("send-x-loop", sending_beside_pulses),
    Scenario("send-x-send-and-poll", sending_from_two_sides),
    Scenario("send-x-alarm-and-poll", sending_to_one_whose_alarm_rings),
    Scenario("send-x-poll-x-poll", waking_beside_two_pollers, actors=3),
    Scenario("send-x-poll-x-sweep", sweeping, actors=3),
    Scenario("send-x-poll-x-cancel", sending_and_cancelling, actors=3),
    Scenario("child-ends-x-parent-suspends", child_ends(done)),
    Scenario("child-suspends-x-parent-suspends", child_ends(suspend, wait=True)),
    Scenario("peers", peers(wait=False)),
    Scenario("peers-waiting", peers(wait=True)),
    Scenario("peer-x-waiting-peer", telling_one_that_waits),
    Scenario("families", families(wait=False)),
    Scenario("families-waiting", families(wait=True)),
    Scenario("functions-of-peers", commit_functions.peers),
    Scenario("function-x-commit-of-a-peer", commit_functions.peer_of_a_pulse),
    Scenario("functions-of-a-family-x-child-ends", commit_functions.family(done)),
    Scenario("functions-of-a-family-x-child-suspends", commit_functions.family(suspend)),
    Scenario("function-ends-with-children-x-child-spawns", commit_functions.ending_with_children),
    Scenario("cancel-tree-x-function-of-a-child", commit_functions.cancelling_a_tree),
    Scenario("old-owner-suspends-x-new-owner", owners(suspend)),
    Scenario("old-owner-ends-x-new-owner", owners(done)),
    Scenario("old-owner-retries-x-new-owner", owners(retry)),
    Scenario("beat-and-end-x-rescue", beating_again(done)),
    Scenario("beat-and-suspend-x-rescue", beating_again(suspend)),
    Scenario("child-ends-x-last-loss", losing_a_child),
    Scenario("claim-x-claim", claiming),
    Scenario("cancel-x-suspend", cancelling(suspend)),
    Scenario("cancel-x-done", cancelling(done)),
    Scenario("cancel-x-child-ends", cancelling_a_child(done)),
    Scenario("cancel-x-child-ends-waiting", cancelling_a_child(done, wait=True)),
    Scenario("cancel-x-child-suspends", cancelling_a_child(suspend)),
    Scenario("cancel-tree-x-child-spawns", cancelling_a_tree()),
    Scenario("cancel-tree-x-child-spawns-waiting", cancelling_a_tree(wait=True)),
    Scenario("end-with-children-x-child-ends", ending_with_children(done)),
    Scenario("end-with-children-x-child-suspends", ending_with_children(suspend)),
    Scenario("end-with-children-x-child-spawns", ending_with_children(spawn)),
    Scenario("end-with-children-x-child-spawns-waiting", ending_with_children(spawn, wait=True)),
    Scenario("requeue-x-send", requeueing_beside_a_send),
    Scenario("requeue-x-send-x-poll", requeueing_beside_a_send_and_a_poll, actors=3),
    Scenario("requeue-and-cancel-x-requeue", requeueing_twice),
    Scenario("requeued-child-ends-x-parent-suspends", requeueing_a_child),
    Scenario("requeue-and-poll-x-child-of-it-ends", requeueing_a_parent),
    Scenario("requeue-x-enqueue-of-its-key", requeueing_a_key),
    Scenario("enqueue-x-enqueue-of-one-key", enqueueing_a_key),
    Scenario("submit-x-submit-of-one-key", submitting("k")),
    Scenario("submit-x-submit-of-two-keys", submitting("k", "l")),
    Scenario("prune-x-submit-of-its-key", submitting_beside_a_prune),
    Scenario("send-x-end-and-prune", pruning_beside_a_send),
    Scenario("prune-x-requeue", pruning_beside_requeue),
    Scenario("prune-x-child-of-it-ends", pruning_beside_a_child),
    Scenario("prune-x-prune", pruning_twice),
    Scenario("send-x-repeat-and-poll", repeating),
    Scenario("send-x-repeat-of-what-was-taken-back", repeating_what_was_taken_back),
    Scenario("repeat-x-poll", repeating_what_is_being_read),
    Scenario("send-x-repeat-x-poll", repeating_beside_a_poll, actors=3),
]
SCENARIOS = {scenario.name: scenario for scenario in ALL}
# Where many orders tell nothing new of it, or there are none that matter: the portable engine locks no receiver
# against its deletion, since SQLite has one writer and foreign keys are checked at once elsewhere.
NOT_ON_PORTABLE = {
    "send-x-two-polls",
    "send-x-send-and-poll",
    "send-x-alarm-and-poll",
    "old-owner-suspends-x-new-owner",
    "old-owner-ends-x-new-owner",
    "old-owner-retries-x-new-owner",
    "end-with-children-x-child-ends",
    "end-with-children-x-child-spawns",
    "cancel-tree-x-child-spawns",
    "send-x-repeat-and-poll",
    "send-x-end-and-prune",
    "functions-of-peers",
    "functions-of-a-family-x-child-ends",
}
ON_PORTABLE = [scenario.name for scenario in ALL if scenario.actors == 2 and scenario.name not in NOT_ON_PORTABLE]

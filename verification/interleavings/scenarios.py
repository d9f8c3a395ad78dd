"""The races. Each scenario creates its rows and returns one script for each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verification.interleavings import commit_functions
from verification.interleavings.backend import (
    Decide,
    IsolatedBackend,
    and_send,
    give_up,
    leave_unread,
    retry,
    sleep,
    spawn,
    succeed,
    succeed_and_cancel_children,
    suspend,
)
from verification.interleavings.stepper import Script

SetUp = Callable[[IsolatedBackend], Sequence[Script]]


@dataclass(frozen=True)
class Scenario:
    """A race. set_up creates the rows and returns the scripts of the clients."""

    name: str
    set_up: SetUp
    clients: int = 2


# --- a view sends to a task during its poll


def sending(decide: Decide, *, wait: bool = False) -> SetUp:
    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        task = backend.add("task")
        return [lambda: backend.send(task, "m"), lambda: backend.poll("task", decide=decide, wait=wait)]

    return set_up


def sending_to_actor_that_leaves_messages(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")
    backend.send(task, "not-yet")
    return [lambda: backend.send(task, "m"), lambda: backend.poll("task", decide=leave_unread)]


def sending_beside_two_polls(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")

    def poll_twice() -> None:
        backend.poll("task", decide=suspend)
        backend.poll("task", decide=succeed)

    return [lambda: backend.send(task, "m"), poll_twice]


def sending_beside_commit_and_claim(backend: IsolatedBackend) -> Sequence[Script]:
    """One transaction commits and claims: it may claim the task that it has just made READY."""
    claimed = backend.running("task")

    def poll_and_claim() -> None:
        for again in backend.commit_and_claim(suspend(claimed, backend.read(claimed.id)), "task"):
            backend.commit(suspend(again, backend.read(again.id)))

    return [lambda: backend.send(claimed.id, "m"), poll_and_claim]


def sending_from_two_sides(backend: IsolatedBackend) -> Sequence[Script]:
    """The lower message id may be committed after a poll has read the higher one."""
    task = backend.add("task")

    def send_and_poll() -> None:
        backend.insert(task, "m2")  # the task is READY: it needs no wake
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m1"), send_and_poll]


def waking_beside_two_pollers(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task")

    def poll() -> None:
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m"), poll, poll]


def sending_to_task_that_is_due(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task", wake_after_seconds=0.0)

    def wake_and_poll() -> None:
        backend.engine.wake_due()
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m"), wake_and_poll]


def sweeping(backend: IsolatedBackend) -> Sequence[Script]:
    """The sweep must not disturb a poll."""
    task = backend.add("task")

    def sweep() -> None:
        backend.engine.sweep()
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m"), lambda: backend.poll("task", decide=suspend), sweep]


# --- tasks that send to each other


def child_ends(child_decides: Decide, *, wait: bool = False) -> SetUp:
    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        parent = backend.running("parent")
        child = backend.running("child", parent_id=parent.id)
        return [
            lambda: backend.commit(child_decides(child, ()), wait=wait),
            lambda: backend.commit(suspend(parent, backend.read(parent.id)), wait=wait),
        ]

    return set_up


def peers(*, wait: bool) -> SetUp:
    """Two tasks send to each other and suspend: each commit locks both rows."""

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        a, b = backend.running("a"), backend.running("b")
        return [
            lambda: backend.commit(and_send(suspend, b.id, "from-a")(a, ()), wait=wait),
            lambda: backend.commit(and_send(suspend, a.id, "from-b")(b, ()), wait=wait),
        ]

    return set_up


def sending_to_peer_that_waits(backend: IsolatedBackend) -> Sequence[Script]:
    """An atomic body commits on the worker's own connection: it waits for the row, then checks the inbox."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: backend.commit(and_send(suspend, b.id, "from-a")(a, ())),
        lambda: backend.commit(suspend(b, ()), wait=True),
    ]


def families(*, wait: bool) -> SetUp:
    """
    Each executor commits a parent of one family and a child of the other. Parents send to children, and children end.
    """

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        parent_1, parent_2 = backend.running("parent-1"), backend.running("parent-2")
        child_1 = backend.running("child-1", parent_id=parent_1.id)
        child_2 = backend.running("child-2", parent_id=parent_2.id)
        to_child_1, to_child_2 = and_send(suspend, child_1.id, "parent-1"), and_send(suspend, child_2.id, "parent-2")
        return [
            lambda: backend.commit(to_child_1(parent_1, ()), succeed(child_2, ()), wait=wait),
            lambda: backend.commit(to_child_2(parent_2, ()), succeed(child_1, ()), wait=wait),
        ]

    return set_up


# --- consecutive claims


def owners(decide: Decide) -> SetUp:
    """An executor commits after its timeout, while another rescues and claims its task."""

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        claimed = backend.lost("task")
        backend.send(claimed.id, "m")
        messages = backend.read(claimed.id)

        def rescue_and_poll() -> None:
            backend.rescue()
            backend.poll("task", decide=suspend)

        return [lambda: backend.commit(decide(claimed, messages)), rescue_and_poll]

    return set_up


def heartbeat_after_timeout(decide: Decide) -> SetUp:
    """An executor sends a heartbeat after a long silence and commits the confirmed claims, beside a rescue."""

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        claimed = backend.lost("task")
        backend.send(claimed.id, "m")
        messages = backend.read(claimed.id)

        def heartbeat_and_commit() -> None:
            if backend.heartbeat_confirms(claimed):
                backend.commit(decide(claimed, messages))

        def rescue_and_poll() -> None:
            backend.read(claimed.id)  # a read before the first step, so that rescue() sees every recorded heartbeat
            backend.rescue()
            backend.poll("task", decide=suspend)

        return [heartbeat_and_commit, rescue_and_poll]

    return set_up


def losing_a_child(backend: IsolatedBackend) -> Sequence[Script]:
    """A rescue fails a child after its last loss, while the child's executor commits its end."""
    parent = backend.suspended("parent")
    child = backend.lost("child", parent_id=parent)
    backend.engine.tasks.filter(pk=child.id).update(executor_losses=2)
    return [lambda: backend.commit(succeed(child, ())), backend.rescue]


def claiming(backend: IsolatedBackend) -> Sequence[Script]:
    for _ in range(3):
        backend.add("task")

    def claim_and_commit() -> None:
        backend.commit(*[succeed(claimed, ()) for claimed in backend.claim("task", limit=2)])

    return [claim_and_commit, claim_and_commit]


# --- cancel


def cancelling(decide: Decide) -> SetUp:
    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        task = backend.add("task")
        backend.send(task, "m")
        return [lambda: backend.cancel(task), lambda: backend.poll("task", decide=decide)]

    return set_up


def cancelling_a_child(decide: Decide, *, wait: bool = False) -> SetUp:
    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        parent = backend.suspended("parent")
        child = backend.add("child", parent_id=parent)
        return [lambda: backend.cancel(child, wait=wait), lambda: backend.poll("child", decide=decide)]

    return set_up


def sending_and_cancelling(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")
    return [
        lambda: backend.send(task, "m"),
        lambda: backend.poll("task", decide=suspend),
        lambda: backend.cancel(task),
    ]


def cancelling_a_tree(*, wait: bool = False) -> SetUp:
    """A child spawns a child while its family is cancelled."""

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        parent = backend.suspended("parent")
        backend.add("child", parent_id=parent)
        return [lambda: backend.cancel(parent, tree=True, wait=wait), lambda: backend.poll("child", decide=spawn)]

    return set_up


def ending_with_children(child_decides: Decide, *, wait: bool = False) -> SetUp:
    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        parent = backend.running("parent")
        backend.add("child", parent_id=parent.id)
        backend.suspended("sleeping child", parent_id=parent.id)
        return [
            lambda: backend.commit(succeed_and_cancel_children(parent, backend.read(parent.id)), wait=wait),
            lambda: backend.poll("child", decide=child_decides, wait=wait),
        ]

    return set_up


# --- requeue and prune


def requeueing_beside_a_send(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")
    return [lambda: backend.requeue(task), lambda: backend.send(task, "m")]


def requeueing_beside_a_send_and_a_poll(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")
    return [
        lambda: backend.requeue(task),
        lambda: backend.send(task, "m"),
        lambda: backend.poll("task", decide=suspend),
    ]


def requeueing_twice(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")

    def requeue_and_cancel() -> None:
        backend.requeue(task)
        backend.cancel(task)

    return [requeue_and_cancel, lambda: backend.requeue(task)]


def requeueing_a_child(backend: IsolatedBackend) -> Sequence[Script]:
    """A requeued child has already reported an end to its parent."""
    parent = backend.running("parent")
    child = backend.ended("child", parent_id=parent.id)
    backend.requeue(child)
    return [
        lambda: backend.poll("child", decide=succeed),
        lambda: backend.commit(suspend(parent, backend.read(parent.id))),
    ]


def requeueing_a_key(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task", key="k")
    return [lambda: backend.requeue(task), lambda: backend.enqueue("other", "k")]


def enqueueing_a_key(backend: IsolatedBackend) -> Sequence[Script]:
    return [lambda: backend.enqueue("a", "k"), lambda: backend.enqueue("b", "k")]


def submitting(*keys: str) -> SetUp:
    """The same submission arrives twice at once, with the keys in opposite order."""

    def set_up(backend: IsolatedBackend) -> Sequence[Script]:
        return [lambda: backend.submit("a", *keys), lambda: backend.submit("b", *keys[::-1])]

    return set_up


def submitting_beside_a_prune(backend: IsolatedBackend) -> Sequence[Script]:
    """The task that owns the key has finished and is pruned."""
    backend.submit("task", "k")
    backend.poll("task", decide=give_up)
    return [backend.prune, lambda: backend.submit("again", "k")]


def pruning_beside_a_send(backend: IsolatedBackend) -> Sequence[Script]:
    """The receiver ends and is pruned while the sender's transaction is open."""
    claimed = backend.running("task")

    def end_and_prune() -> None:
        backend.commit(give_up(claimed, ()))
        backend.prune()

    return [lambda: backend.send(claimed.id, "m"), end_and_prune]


def pruning_beside_requeue(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")
    return [backend.prune, lambda: backend.requeue(task)]


def pruning_beside_a_child(backend: IsolatedBackend) -> Sequence[Script]:
    parent = backend.ended("parent")
    child = backend.running("child", parent_id=parent)
    return [backend.prune, lambda: backend.commit(succeed(child, ()))]


def requeueing_a_parent(backend: IsolatedBackend) -> Sequence[Script]:
    """The child may end before or after the parent is requeued."""
    parent = backend.ended("parent")
    child = backend.running("child", parent_id=parent)

    def requeue_and_poll() -> None:
        backend.requeue(parent)
        backend.poll("parent", decide=suspend)

    return [requeue_and_poll, lambda: backend.commit(succeed(child, ()))]


def pruning_twice(backend: IsolatedBackend) -> Sequence[Script]:
    for _ in range(2):
        backend.ended("task")
    return [backend.prune, backend.prune]


# --- a message that is sent twice


def repeating(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")

    def send_and_poll() -> None:
        backend.send(task, "m", dedupe_key="k")
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m", dedupe_key="k"), send_and_poll]


def repeating_a_rolled_back_message(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task")
    return [
        lambda: backend.send_and_roll_back(task, "rolled-back", dedupe_key="k"),
        lambda: backend.send(task, "m", dedupe_key="k"),
    ]


def repeating_during_a_read(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")
    backend.send(task, "m", dedupe_key="k")
    return [lambda: backend.send(task, "m", dedupe_key="k"), lambda: backend.poll("task", decide=suspend)]


def repeating_beside_a_poll(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task")
    return [
        lambda: backend.send(task, "m", dedupe_key="k"),
        lambda: backend.send(task, "m", dedupe_key="k"),
        lambda: backend.poll("task", decide=suspend),
    ]


ALL = [
    Scenario("send-x-suspend", sending(suspend)),
    Scenario("send-x-suspend-waiting", sending(suspend, wait=True)),
    Scenario("send-x-sleep", sending(sleep)),
    Scenario("send-x-done", sending(succeed)),
    Scenario("send-x-retry", sending(retry)),
    Scenario("send-x-leave", sending_to_actor_that_leaves_messages),
    Scenario("send-x-two-polls", sending_beside_two_polls),
    Scenario("send-x-commit-and-claim", sending_beside_commit_and_claim),
    Scenario("send-x-send-and-poll", sending_from_two_sides),
    Scenario("send-x-wake-due-and-poll", sending_to_task_that_is_due),
    Scenario("send-x-poll-x-poll", waking_beside_two_pollers, clients=3),
    Scenario("send-x-poll-x-sweep", sweeping, clients=3),
    Scenario("send-x-poll-x-cancel", sending_and_cancelling, clients=3),
    Scenario("child-ends-x-parent-suspends", child_ends(succeed)),
    Scenario("child-suspends-x-parent-suspends", child_ends(suspend, wait=True)),
    Scenario("peers", peers(wait=False)),
    Scenario("peers-waiting", peers(wait=True)),
    Scenario("peer-x-waiting-peer", sending_to_peer_that_waits),
    Scenario("families", families(wait=False)),
    Scenario("families-waiting", families(wait=True)),
    Scenario("functions-of-peers", commit_functions.peers),
    Scenario("function-x-commit-of-a-peer", commit_functions.peer_without_function),
    Scenario("functions-of-a-family-x-child-ends", commit_functions.family(succeed)),
    Scenario("functions-of-a-family-x-child-suspends", commit_functions.family(suspend)),
    Scenario("function-ends-with-children-x-child-spawns", commit_functions.ending_with_children),
    Scenario("cancel-tree-x-function-of-a-child", commit_functions.cancelling_a_tree),
    Scenario("old-owner-suspends-x-new-owner", owners(suspend)),
    Scenario("old-owner-ends-x-new-owner", owners(succeed)),
    Scenario("old-owner-retries-x-new-owner", owners(retry)),
    Scenario("heartbeat-and-end-x-rescue", heartbeat_after_timeout(succeed)),
    Scenario("heartbeat-and-suspend-x-rescue", heartbeat_after_timeout(suspend)),
    Scenario("child-ends-x-last-loss", losing_a_child),
    Scenario("claim-x-claim", claiming),
    Scenario("cancel-x-suspend", cancelling(suspend)),
    Scenario("cancel-x-done", cancelling(succeed)),
    Scenario("cancel-x-child-ends", cancelling_a_child(succeed)),
    Scenario("cancel-x-child-ends-waiting", cancelling_a_child(succeed, wait=True)),
    Scenario("cancel-x-child-suspends", cancelling_a_child(suspend)),
    Scenario("cancel-tree-x-child-spawns", cancelling_a_tree()),
    Scenario("cancel-tree-x-child-spawns-waiting", cancelling_a_tree(wait=True)),
    Scenario("end-with-children-x-child-ends", ending_with_children(succeed)),
    Scenario("end-with-children-x-child-suspends", ending_with_children(suspend)),
    Scenario("end-with-children-x-child-spawns", ending_with_children(spawn)),
    Scenario("end-with-children-x-child-spawns-waiting", ending_with_children(spawn, wait=True)),
    Scenario("requeue-x-send", requeueing_beside_a_send),
    Scenario("requeue-x-send-x-poll", requeueing_beside_a_send_and_a_poll, clients=3),
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
    Scenario("send-x-repeat-of-a-rolled-back-message", repeating_a_rolled_back_message),
    Scenario("repeat-x-poll", repeating_during_a_read),
    Scenario("send-x-repeat-x-poll", repeating_beside_a_poll, clients=3),
]
SCENARIOS = {scenario.name: scenario for scenario in ALL}
# Races that add nothing for the portable engine. It locks no receiver against deletion: SQLite has one writer, and
# other databases check foreign keys at once.
NOT_ON_PORTABLE = {
    "send-x-two-polls",
    "send-x-send-and-poll",
    "send-x-wake-due-and-poll",
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
ON_PORTABLE = [scenario.name for scenario in ALL if scenario.clients == 2 and scenario.name not in NOT_ON_PORTABLE]

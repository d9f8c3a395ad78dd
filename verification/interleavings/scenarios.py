"""The races. Each function creates the rows of a race and returns one script for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verification.interleavings import invariants
from verification.interleavings.backend import (
    Decide,
    IsolatedBackend,
    and_send,
    give_up,
    leave_unread,
    retry,
    return_none,
    sleep,
    spawn,
    succeed,
    succeed_and_cancel_children,
    suspend,
)
from verification.interleavings.stepper import Script

SetUp = Callable[..., Sequence[Script]]


@dataclass(frozen=True)
class Rules:
    """The rows that races of one kind have, and what must hold after each order, and after all tasks have ended."""

    backend: type[IsolatedBackend]
    snapshot: Callable[..., invariants.Snapshot]
    problems: Callable[..., Iterator[str]]
    run_to_end: Callable[..., Iterator[str]]
    at_each_end: Callable[..., Iterable[str]] = lambda backend: ()


RULES_OF_TASKS = Rules(IsolatedBackend, invariants.Snapshot, invariants.problems, invariants.run_to_end)


@dataclass(frozen=True)
class Scenario:
    """A race. set_up creates the rows and returns the scripts of the clients."""

    name: str
    set_up: SetUp
    clients: int
    on_portable: bool
    rules: Rules


SCENARIOS: dict[str, Scenario] = {}


def race(
    name: str,
    *arguments: Any,
    clients: int = 2,
    on_portable: bool = True,
    rules: Rules = RULES_OF_TASKS,
    **options: Any,
) -> Callable[[SetUp], SetUp]:
    """
    Register a race: a function called with these arguments.

    on_portable: False for a race that adds nothing for the portable engine. It locks no receiver against deletion:
    SQLite has one writer, and other databases check foreign keys at once.
    """

    def register(function: SetUp) -> SetUp:
        SCENARIOS[name] = Scenario(
            name, lambda backend: function(backend, *arguments, **options), clients, on_portable, rules
        )
        return function

    return register


# --- a view sends to a task during its poll


@race("send-x-suspend", suspend)
@race("send-x-suspend-waiting", suspend, wait=True)
@race("send-x-sleep", sleep)
@race("send-x-done", succeed)
@race("send-x-retry", retry)
def sending(backend: IsolatedBackend, decide: Decide, *, wait: bool = False) -> Sequence[Script]:
    task = backend.add("task")
    return [lambda: backend.send(task, "m"), lambda: backend.poll("task", decide=decide, wait=wait)]


@race("send-x-leave")
def sending_to_actor_that_leaves_messages(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")
    backend.send(task, "not-yet")
    return [lambda: backend.send(task, "m"), lambda: backend.poll("task", decide=leave_unread)]


@race("send-x-two-polls", on_portable=False)
def sending_beside_two_polls(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")

    def poll_twice() -> None:
        backend.poll("task", decide=suspend)
        backend.poll("task", decide=succeed)

    return [lambda: backend.send(task, "m"), poll_twice]


@race("send-x-commit-and-claim")
def sending_beside_commit_and_claim(backend: IsolatedBackend) -> Sequence[Script]:
    """One transaction commits and claims: it may claim the task that it has just made READY."""
    claimed = backend.running("task")

    def poll_and_claim() -> None:
        for again in backend.commit_and_claim(suspend(claimed, backend.read(claimed.id)), "task"):
            backend.commit(suspend(again, backend.read(again.id)))

    return [lambda: backend.send(claimed.id, "m"), poll_and_claim]


@race("send-x-send-and-poll", on_portable=False)
def sending_from_two_sides(backend: IsolatedBackend) -> Sequence[Script]:
    """The lower message id may be committed after a poll has read the higher one."""
    task = backend.add("task")

    def send_and_poll() -> None:
        backend.insert(task, "m2")  # the task is READY: it needs no wake
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m1"), send_and_poll]


@race("send-x-poll-x-poll", clients=3)
def waking_beside_two_pollers(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task")

    def poll() -> None:
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m"), poll, poll]


@race("send-x-wake-due-and-poll", on_portable=False)
def sending_to_task_that_is_due(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task", wake_after_seconds=0.0)

    def wake_and_poll() -> None:
        backend.engine.inbox.wake_due()
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m"), wake_and_poll]


@race("send-x-poll-x-sweep", clients=3)
def sweeping(backend: IsolatedBackend) -> Sequence[Script]:
    """The sweep must not disturb a poll."""
    task = backend.add("task")

    def sweep() -> None:
        backend.engine.messages.sweep()
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m"), lambda: backend.poll("task", decide=suspend), sweep]


# --- tasks that send to each other


@race("child-ends-x-parent-suspends", succeed)
@race("child-suspends-x-parent-suspends", suspend, wait=True)
def child_ends(backend: IsolatedBackend, child_decides: Decide, *, wait: bool = False) -> Sequence[Script]:
    parent = backend.running("parent")
    child = backend.running("child", parent_id=parent.id)
    return [
        lambda: backend.commit(child_decides(child, ()), wait=wait),
        lambda: backend.commit(suspend(parent, backend.read(parent.id)), wait=wait),
    ]


@race("peers", wait=False)
@race("peers-waiting", wait=True)
def peers(backend: IsolatedBackend, *, wait: bool) -> Sequence[Script]:
    """Two tasks send to each other and suspend: each commit locks both rows."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: backend.commit(and_send(suspend, b.id, "from-a")(a, ()), wait=wait),
        lambda: backend.commit(and_send(suspend, a.id, "from-b")(b, ()), wait=wait),
    ]


@race("peer-x-waiting-peer")
def sending_to_peer_that_waits(backend: IsolatedBackend) -> Sequence[Script]:
    """An atomic body commits on the worker's own connection: it waits for the row, then checks the inbox."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: backend.commit(and_send(suspend, b.id, "from-a")(a, ())),
        lambda: backend.commit(suspend(b, ()), wait=True),
    ]


@race("families", wait=False)
@race("families-waiting", wait=True)
def families(backend: IsolatedBackend, *, wait: bool) -> Sequence[Script]:
    """
    Each executor commits a parent of one family and a child of the other. Parents send to children, and children end.
    """
    parent_1, parent_2 = backend.running("parent-1"), backend.running("parent-2")
    child_1 = backend.running("child-1", parent_id=parent_1.id)
    child_2 = backend.running("child-2", parent_id=parent_2.id)
    to_child_1, to_child_2 = and_send(suspend, child_1.id, "parent-1"), and_send(suspend, child_2.id, "parent-2")
    return [
        lambda: backend.commit(to_child_1(parent_1, ()), succeed(child_2, ()), wait=wait),
        lambda: backend.commit(to_child_2(parent_2, ()), succeed(child_1, ()), wait=wait),
    ]


# --- polls that return a function, which runs in the transaction of the commit


@race("functions-of-peers", on_portable=False)
def functions_of_peers(backend: IsolatedBackend) -> Sequence[Script]:
    """Two tasks send to each other and suspend."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: backend.commit_in_function(a, and_send(suspend, b.id, "from-a")(a, ())),
        lambda: backend.commit_in_function(b, and_send(suspend, a.id, "from-b")(b, ())),
    ]


@race("function-x-commit-of-a-peer")
def function_and_peer(backend: IsolatedBackend) -> Sequence[Script]:
    """One of the two polls returns actions instead of a function."""
    a, b = backend.running("a"), backend.running("b")
    return [
        lambda: backend.commit_in_function(a, and_send(suspend, b.id, "from-a")(a, ())),
        lambda: backend.commit(and_send(suspend, a.id, "from-b")(b, ())),
    ]


@race("functions-of-a-family-x-child-ends", succeed, on_portable=False)
@race("functions-of-a-family-x-child-suspends", suspend)
def functions_of_family(backend: IsolatedBackend, child_decides: Decide) -> Sequence[Script]:
    """A parent sends to its child, which ends or suspends."""
    parent = backend.running("parent")
    child = backend.running("child", parent_id=parent.id)
    return [
        lambda: backend.commit_in_function(parent, and_send(suspend, child.id, "stop")(parent, ())),
        lambda: backend.commit_in_function(child, child_decides(child, ())),
    ]


@race("function-ends-with-children-x-child-spawns")
def function_that_ends_children(backend: IsolatedBackend) -> Sequence[Script]:
    """A child spawns a child at the moment its parent cancels it."""
    parent = backend.running("parent")
    child = backend.running("child", parent_id=parent.id)
    return [
        lambda: backend.commit_in_function(parent, succeed_and_cancel_children(parent, ())),
        lambda: backend.commit_in_function(child, spawn(child, ())),
    ]


@race("cancel-tree-x-function-of-a-child")
def cancelling_tree_of_function(backend: IsolatedBackend) -> Sequence[Script]:
    parent = backend.suspended("parent")
    child = backend.running("child", parent_id=parent)
    return [
        lambda: backend.cancel(parent, tree=True),
        lambda: backend.commit_in_function(child, succeed(child, ())),
    ]


# --- consecutive claims


@race("old-owner-suspends-x-new-owner", suspend, on_portable=False)
@race("old-owner-ends-x-new-owner", succeed, on_portable=False)
@race("old-function-ends-x-new-owner", return_none, on_portable=False)
@race("old-owner-retries-x-new-owner", retry, on_portable=False)
def owners(backend: IsolatedBackend, decide: Decide) -> Sequence[Script]:
    """An executor commits after its timeout, while another rescues and claims its task."""
    claimed = backend.lost("task")
    backend.send(claimed.id, "m")
    messages = backend.read(claimed.id)

    def rescue_and_poll() -> None:
        backend.rescue()
        backend.poll("task", decide=suspend)

    return [lambda: backend.commit(decide(claimed, messages)), rescue_and_poll]


@race("heartbeat-and-end-x-rescue", succeed)
@race("heartbeat-and-suspend-x-rescue", suspend)
def heartbeat_after_timeout(backend: IsolatedBackend, decide: Decide) -> Sequence[Script]:
    """An executor sends a heartbeat after a long silence and commits the confirmed claims, beside a rescue."""
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


@race("child-ends-x-last-loss")
def losing_a_child(backend: IsolatedBackend) -> Sequence[Script]:
    """A rescue fails a child after its last loss, while the child's executor commits its end."""
    parent = backend.suspended("parent")
    child = backend.lost("child", parent_id=parent)
    backend.engine.db.tasks.filter(pk=child.id).update(executor_losses=2)
    return [lambda: backend.commit(succeed(child, ())), backend.rescue]


@race("claim-x-claim")
def claiming(backend: IsolatedBackend) -> Sequence[Script]:
    for _ in range(3):
        backend.add("task")

    def claim_and_commit() -> None:
        backend.commit(*[succeed(claimed, ()) for claimed in backend.claim("task", limit=2)])

    return [claim_and_commit, claim_and_commit]


# --- cancel


@race("cancel-x-suspend", suspend)
@race("cancel-x-done", succeed)
def cancelling(backend: IsolatedBackend, decide: Decide) -> Sequence[Script]:
    task = backend.add("task")
    backend.send(task, "m")
    return [lambda: backend.cancel(task), lambda: backend.poll("task", decide=decide)]


@race("cancel-x-child-ends", succeed)
@race("cancel-x-child-ends-waiting", succeed, wait=True)
@race("cancel-x-child-suspends", suspend)
def cancelling_a_child(backend: IsolatedBackend, decide: Decide, *, wait: bool = False) -> Sequence[Script]:
    parent = backend.suspended("parent")
    child = backend.add("child", parent_id=parent)
    return [lambda: backend.cancel(child, wait=wait), lambda: backend.poll("child", decide=decide)]


@race("send-x-poll-x-cancel", clients=3)
def sending_and_cancelling(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")
    return [
        lambda: backend.send(task, "m"),
        lambda: backend.poll("task", decide=suspend),
        lambda: backend.cancel(task),
    ]


@race("cancel-tree-x-child-spawns", on_portable=False)
@race("cancel-tree-x-child-spawns-waiting", wait=True)
def cancelling_a_tree(backend: IsolatedBackend, *, wait: bool = False) -> Sequence[Script]:
    """A child spawns a child while its family is cancelled."""
    parent = backend.suspended("parent")
    backend.add("child", parent_id=parent)
    return [lambda: backend.cancel(parent, tree=True, wait=wait), lambda: backend.poll("child", decide=spawn)]


@race("end-with-children-x-child-ends", succeed, on_portable=False)
@race("end-with-children-x-child-suspends", suspend)
@race("end-with-children-x-child-spawns", spawn, on_portable=False)
@race("end-with-children-x-child-spawns-waiting", spawn, wait=True)
def ending_with_children(backend: IsolatedBackend, child_decides: Decide, *, wait: bool = False) -> Sequence[Script]:
    parent = backend.running("parent")
    backend.add("child", parent_id=parent.id)
    backend.suspended("sleeping child", parent_id=parent.id)
    return [
        lambda: backend.commit(succeed_and_cancel_children(parent, backend.read(parent.id)), wait=wait),
        lambda: backend.poll("child", decide=child_decides, wait=wait),
    ]


# --- requeue and prune


@race("requeue-x-send")
def requeueing_beside_a_send(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")
    return [lambda: backend.requeue(task), lambda: backend.send(task, "m")]


@race("requeue-x-send-x-poll", clients=3)
def requeueing_beside_a_send_and_a_poll(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")
    return [
        lambda: backend.requeue(task),
        lambda: backend.send(task, "m"),
        lambda: backend.poll("task", decide=suspend),
    ]


@race("requeue-and-cancel-x-requeue")
def requeueing_twice(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")

    def requeue_and_cancel() -> None:
        backend.requeue(task)
        backend.cancel(task)

    return [requeue_and_cancel, lambda: backend.requeue(task)]


@race("requeued-child-ends-x-parent-suspends")
def requeueing_a_child(backend: IsolatedBackend) -> Sequence[Script]:
    """A requeued child has already reported an end to its parent."""
    parent = backend.running("parent")
    child = backend.ended("child", parent_id=parent.id)
    backend.requeue(child)
    return [
        lambda: backend.poll("child", decide=succeed),
        lambda: backend.commit(suspend(parent, backend.read(parent.id))),
    ]


@race("requeue-x-enqueue-of-its-key")
def requeueing_a_key(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task", key="k")
    return [lambda: backend.requeue(task), lambda: backend.enqueue("other", "k")]


@race("enqueue-x-enqueue-of-one-key")
def enqueueing_a_key(backend: IsolatedBackend) -> Sequence[Script]:
    return [lambda: backend.enqueue("a", "k"), lambda: backend.enqueue("b", "k")]


@race("submit-x-submit-of-one-key", "k")
@race("submit-x-submit-of-two-keys", "k", "l")
def submitting(backend: IsolatedBackend, *keys: str) -> Sequence[Script]:
    """The same submission arrives twice at once, with the keys in opposite order."""
    return [lambda: backend.submit("a", *keys), lambda: backend.submit("b", *keys[::-1])]


@race("prune-x-submit-of-its-key")
def submitting_beside_a_prune(backend: IsolatedBackend) -> Sequence[Script]:
    """The task that owns the key has finished and is pruned."""
    backend.submit("task", "k")
    backend.poll("task", decide=give_up)
    return [backend.prune, lambda: backend.submit("again", "k")]


@race("send-x-end-and-prune", on_portable=False)
def pruning_beside_a_send(backend: IsolatedBackend) -> Sequence[Script]:
    """The receiver ends and is pruned while the sender's transaction is open."""
    claimed = backend.running("task")

    def end_and_prune() -> None:
        backend.commit(give_up(claimed, ()))
        backend.prune()

    return [lambda: backend.send(claimed.id, "m"), end_and_prune]


@race("prune-x-requeue")
def pruning_beside_requeue(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.ended("task")
    return [backend.prune, lambda: backend.requeue(task)]


@race("prune-x-child-of-it-ends")
def pruning_beside_a_child(backend: IsolatedBackend) -> Sequence[Script]:
    parent = backend.ended("parent")
    child = backend.running("child", parent_id=parent)
    return [backend.prune, lambda: backend.commit(succeed(child, ()))]


@race("requeue-and-poll-x-child-of-it-ends")
def requeueing_a_parent(backend: IsolatedBackend) -> Sequence[Script]:
    """The child may end before or after the parent is requeued."""
    parent = backend.ended("parent")
    child = backend.running("child", parent_id=parent)

    def requeue_and_poll() -> None:
        backend.requeue(parent)
        backend.poll("parent", decide=suspend)

    return [requeue_and_poll, lambda: backend.commit(succeed(child, ()))]


@race("prune-x-prune")
def pruning_twice(backend: IsolatedBackend) -> Sequence[Script]:
    for _ in range(2):
        backend.ended("task")
    return [backend.prune, backend.prune]


# --- a message that is sent twice


@race("send-x-repeat-and-poll", on_portable=False)
def repeating(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")

    def send_and_poll() -> None:
        backend.send(task, "m", dedupe_key="k")
        backend.poll("task", decide=suspend)

    return [lambda: backend.send(task, "m", dedupe_key="k"), send_and_poll]


@race("send-x-repeat-of-a-rolled-back-message")
def repeating_a_rolled_back_message(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task")
    return [
        lambda: backend.send_and_roll_back(task, "rolled-back", dedupe_key="k"),
        lambda: backend.send(task, "m", dedupe_key="k"),
    ]


@race("repeat-x-poll")
def repeating_during_a_read(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.add("task")
    backend.send(task, "m", dedupe_key="k")
    return [lambda: backend.send(task, "m", dedupe_key="k"), lambda: backend.poll("task", decide=suspend)]


@race("send-x-repeat-x-poll", clients=3)
def repeating_beside_a_poll(backend: IsolatedBackend) -> Sequence[Script]:
    task = backend.suspended("task")
    return [
        lambda: backend.send(task, "m", dedupe_key="k"),
        lambda: backend.send(task, "m", dedupe_key="k"),
        lambda: backend.poll("task", decide=suspend),
    ]

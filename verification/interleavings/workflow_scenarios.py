"""The races of journals, in the shape of scenarios.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import F

from jobqueue.values.ids import new_id
from jobqueue.values.journal import EntryKind, EntryStatus, Restart
from jobqueue.values.records import Effects, NewTask
from jobqueue.values.states import Status
from verification.interleavings import scenarios
from verification.interleavings.backend import crash_at_commit, give_up, outcome, succeed
from verification.interleavings.limit_scenarios import SCENARIOS as SCENARIOS
from verification.interleavings.scenarios import Rules, SetUp
from verification.interleavings.stepper import Script
from verification.interleavings.workflow_backend import (
    CHILD,
    WorkflowBackend,
    effects_of,
    entry,
    gather,
    gather_or_compensate,
    receive,
)
from verification.interleavings.workflow_invariants import WorkflowSnapshot, problems, run_to_end

RULES = Rules(WorkflowBackend, WorkflowSnapshot, problems, run_to_end)


def race(name: str, *arguments: Any, clients: int = 2, on_portable: bool = False, **options: Any) -> Any:
    def register(function: SetUp) -> SetUp:
        scenarios.race(name, *arguments, clients=clients, on_portable=on_portable, rules=RULES, **options)(function)
        return function

    return register


def waiting_for_child(backend: WorkflowBackend) -> Any:
    """Create a workflow with an open compensation that waits for its child. Return the child's claim."""
    backend.add("workflow")
    backend.run("workflow", body=gather)
    (child,) = backend.claim("spawned")
    return child


# --- two executors on one workflow


@race("old-owner-records-x-new-owner", on_portable=True)
@race("old-owner-records-atomically-x-new-owner", atomic=True)
def recording_after_a_rescue(backend: WorkflowBackend, *, atomic: bool = False) -> Sequence[Script]:
    """An executor that seemed to be lost runs a step, while another one runs the workflow."""
    old = backend.lost("workflow")

    def old_owner() -> None:
        record = backend.record_in_transaction if atomic else backend.record
        names = {entry.name for entry in backend.engine.journal.read(old.id).entries}
        if "charge" not in names and record(old, entry("charge")) and backend.step(old, "ship"):
            backend.commit(succeed(old, ()))

    def new_owner() -> None:
        backend.rescue()
        for new in backend.claim("workflow"):
            if backend.step(new, "charge", "ship"):
                backend.commit(succeed(new, ()))

    return [old_owner, new_owner]


@race("new-owner-x-old-owner-records", on_portable=True)
def recording_late(backend: WorkflowBackend) -> Sequence[Script]:
    old = backend.lost("workflow")

    def new_owner() -> None:
        backend.rescue()
        for new in backend.claim("workflow"):
            backend.step(new, "charge")

    return [new_owner, lambda: backend.record(old, entry("charge"))]


@race("old-owner-commits-entries-x-new-owner", on_portable=True)
def committing_after_a_rescue(backend: WorkflowBackend) -> Sequence[Script]:
    old = backend.lost("receiver")

    def new_owner() -> None:
        backend.rescue()
        backend.run("receiver", body=receive)

    return [lambda: backend.commit(receive(old, (), ())), new_owner]


@race("record-with-child-x-rescue", on_portable=True)
def recording_a_child_beside_a_rescue(backend: WorkflowBackend) -> Sequence[Script]:
    old = backend.lost("workflow")
    child = NewTask(id=new_id(), task_type="tests.noop", queue_name="spawned")
    spawned = entry(CHILD, EntryKind.SPAWN, EntryStatus.WAITING, child_id=child.id)
    opened = entry("refund", EntryKind.COMPENSATION, EntryStatus.WAITING)

    def new_owner() -> None:
        backend.rescue()
        backend.run("workflow", body=gather)

    return [lambda: backend.record(old, opened, spawned, effects=Effects(spawn=[child])), new_owner]


# --- step x cancel


@race("record-x-cancel", on_portable=True)
def recording_beside_a_cancel(backend: WorkflowBackend) -> Sequence[Script]:
    claimed = backend.running("workflow")

    def run() -> None:
        if backend.step(claimed, "charge"):
            entries = backend.engine.journal.read(claimed.id).entries
            backend.commit(gather(claimed, entries, ()))

    return [run, lambda: backend.cancel(claimed.id)]


@race("suspend-with-compensation-x-cancel", on_portable=True)
def cancelling_beside_a_suspend(backend: WorkflowBackend) -> Sequence[Script]:
    """The compensation is opened in the poll beside which the cancel is requested."""
    task = backend.add("workflow")
    return [lambda: backend.run("workflow", body=gather), lambda: backend.cancel(task)]


@race("compensate-x-cancel-again", on_portable=True)
def cancelling_twice(backend: WorkflowBackend) -> Sequence[Script]:
    child = waiting_for_child(backend)
    backend.cancel(backend_parent(backend))
    assert child
    return [
        lambda: backend.run("workflow", body=gather_or_compensate(backend)),
        lambda: backend.cancel(backend_parent(backend)),
    ]


@race("terminate-x-compensate", on_portable=True)
def terminating(backend: WorkflowBackend) -> Sequence[Script]:
    waiting_for_child(backend)
    parent = backend_parent(backend)
    backend.cancel(parent)
    return [
        lambda: backend.run("workflow", body=gather_or_compensate(backend)),
        lambda: backend.terminate(parent),
    ]


def backend_parent(backend: WorkflowBackend) -> Any:
    return next(pk for pk, name in backend.names.items() if name == "workflow")


# --- child's end x cancel


@race("child-ends-x-cancel-of-workflow", succeed, on_portable=True)
@race("child-fails-x-cancel-of-workflow", give_up)
def ending_a_child_beside_a_cancel(backend: WorkflowBackend, end: Any) -> Sequence[Script]:
    child = waiting_for_child(backend)
    parent = backend_parent(backend)

    def cancel_and_run() -> None:
        backend.cancel(parent)
        backend.run("workflow", body=gather_or_compensate(backend))

    return [lambda: backend.commit(end(child, ())), cancel_and_run]


@race("child-ends-x-poll-of-workflow", on_portable=True)
def ending_a_child_beside_a_poll(backend: WorkflowBackend) -> Sequence[Script]:
    child = waiting_for_child(backend)
    parent = backend_parent(backend)
    backend.send(parent, "hello")
    return [
        lambda: backend.commit(succeed(child, ())),
        lambda: backend.run("workflow", body=gather_or_compensate(backend)),
    ]


# --- message x timeout


@race("message-x-timeout", on_portable=True)
def sending_beside_a_timeout(backend: WorkflowBackend) -> Sequence[Script]:
    task = backend.add("receiver")
    backend.run("receiver", body=receive)
    backend.engine.db.tasks.filter(pk=task).update(wake_at=F("enqueued_at"))

    def time_out() -> None:
        backend.engine.inbox.wake_due()
        backend.run("receiver", body=receive)

    return [lambda: backend.send(task, "m"), time_out]


@race("restart-x-message", on_portable=True)
def sending_beside_a_restart(backend: WorkflowBackend) -> Sequence[Script]:
    """continue_as_new() keeps the inbox."""
    task = backend.add("receiver")
    backend.run("receiver", body=receive)
    backend.send(task, "first")

    def restart(claimed: Any, entries: Any, messages: Any) -> Any:
        effects = effects_of(claimed, (), restart=Restart("[]", "{}"))
        return outcome(claimed, Status.READY, effects=effects)

    def run() -> None:
        backend.run("receiver", body=restart)
        backend.run("receiver", body=receive)

    return [lambda: backend.send(task, "m"), run]


# --- crash at a commit


@race("crash-before-record-x-rescue", after=False, on_portable=True)
@race("crash-after-record-x-rescue", after=True, on_portable=True)
def crashing_at_a_record(backend: WorkflowBackend, *, after: bool) -> Sequence[Script]:
    old = backend.lost("workflow")
    child = NewTask(id=new_id(), task_type="tests.noop", queue_name="spawned")
    spawned = entry(CHILD, EntryKind.SPAWN, EntryStatus.WAITING, child_id=child.id)
    opened = entry("refund", EntryKind.COMPENSATION, EntryStatus.WAITING)

    def record_and_crash() -> None:
        is_dead = True
        with crash_at_commit(after=after):
            backend.record(old, opened, spawned, effects=Effects(spawn=[child]))
            is_dead = False  # it had lost its claim
        if is_dead and after:
            backend.note_crashed(old, opened, spawned, child=child)

    def new_owner() -> None:
        backend.rescue()
        backend.run("workflow", body=gather)

    return [record_and_crash, new_owner]


@race("crash-after-commit-of-entries-x-message", on_portable=True)
def crashing_at_a_commit(backend: WorkflowBackend) -> Sequence[Script]:
    task = backend.add("receiver")
    (claimed,) = backend.claim("receiver")

    def commit_and_crash() -> None:
        result = receive(claimed, (), ())
        with crash_at_commit(after=True):
            backend.commit(result, wait=True)
        backend.record_crashed(result)

    return [commit_and_crash, lambda: backend.send(task, "m")]


@race("cancel-x-rescue-with-compensation", on_portable=True)
def cancelling_beside_a_rescue(backend: WorkflowBackend) -> Sequence[Script]:
    old = backend.lost("workflow")
    backend.record(old, entry("refund", EntryKind.COMPENSATION, EntryStatus.WAITING))
    return [lambda: backend.cancel(old.id), backend.rescue]


# --- people


@race("rewind-x-poll", on_portable=True)
def rewinding_beside_a_poll(backend: WorkflowBackend) -> Sequence[Script]:
    child = waiting_for_child(backend)
    parent = backend_parent(backend)
    backend.commit(succeed(child, ()))
    return [
        lambda: backend.rewind(parent, CHILD),
        lambda: backend.run("workflow", body=gather_or_compensate(backend)),
    ]


@race("rewind-x-child-ends", on_portable=True)
def rewinding_beside_an_end(backend: WorkflowBackend) -> Sequence[Script]:
    child = waiting_for_child(backend)
    parent = backend_parent(backend)
    return [lambda: backend.rewind(parent, CHILD), lambda: backend.commit(succeed(child, ()))]


@race("skip-x-message", on_portable=True)
def skipping_beside_a_message(backend: WorkflowBackend) -> Sequence[Script]:
    task = backend.add("receiver")
    backend.run("receiver", body=receive)

    def send_and_run() -> None:
        backend.send(task, "m")
        backend.run("receiver", body=receive)

    return [lambda: backend.skip(task, "receive"), send_and_run]

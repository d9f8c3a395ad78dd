"""The races of batches, in the shape of scenarios.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobqueue.values.records import ClaimedTask
from verification.interleavings import scenarios
from verification.interleavings.backend import Decide, crash_at_commit, give_up, succeed, suspend
from verification.interleavings.batch_backend import BATCH_QUEUE, MEMBER, BatchBackend
from verification.interleavings.batch_invariants import BatchSnapshot, problems, run_to_end
from verification.interleavings.scenarios import Rules, SetUp
from verification.interleavings.stepper import Script
from verification.interleavings.workflow_scenarios import SCENARIOS as SCENARIOS

RULES = Rules(BatchBackend, BatchSnapshot, problems, run_to_end)


def race(name: str, *arguments: Any, clients: int = 2, on_portable: bool = False, **options: Any) -> Any:
    def register(function: SetUp) -> SetUp:
        scenarios.race(name, *arguments, clients=clients, on_portable=on_portable, rules=RULES, **options)(function)
        return function

    return register


def with_last_member(backend: BatchBackend, *ends: Decide) -> ClaimedTask:
    """Create a batch whose first members have ended so, and that waits for the last one. Return that one's claim."""
    backend.add_batch(len(ends) + 1)
    for end in ends:
        backend.poll(MEMBER, decide=end)
    (last,) = backend.claim(MEMBER)
    backend.poll_batch()
    while backend.engine.db.tasks.ready().filter(queue_name=BATCH_QUEUE).exists():
        backend.poll_batch()
    return last


def failed_batch(backend: BatchBackend) -> UUID:
    """Create a batch that is FAILED after its callbacks. Return its failed member."""
    last = with_last_member(backend)
    backend.commit(give_up(last, ()))
    due(backend)
    for _ in range(3):  # the end, and the error
        backend.poll_batch()
    assert backend.engine.db.tasks.get(pk=backend.batch_id).status == "FAILED"
    return last.id


def due(backend: BatchBackend) -> None:
    """Wake the batch, if it waits for a while."""
    tasks = backend.engine.db.tasks.filter(pk=backend.batch_id, wake_at__isnull=False)
    if row := tasks.first():
        tasks.update(wake_at=row.enqueued_at)
        backend.engine.inbox.wake_due()


def poll_twice(backend: BatchBackend) -> None:
    """Run two polls: the second one tells an error, or counts what came meanwhile."""
    backend.poll_batch()
    due(backend)
    backend.poll_batch()


# --- a member ends


@race("member-ends-x-batch-polls", succeed)
@race("member-fails-x-batch-polls", give_up)
def ending_beside_a_poll(backend: BatchBackend, end: Decide) -> Sequence[Script]:
    """The last member but one has ended, and the batch counts it."""
    backend.add_batch(2)
    backend.poll(MEMBER, decide=end)
    (last,) = backend.claim(MEMBER)
    return [lambda: backend.commit(succeed(last, ())), lambda: poll_twice(backend)]


@race("member-ends-x-member-ends")
def ending_together(backend: BatchBackend) -> Sequence[Script]:
    first = with_last_member(backend)
    backend.add_member()
    backend.poll_batch()
    (second,) = backend.claim(MEMBER)
    return [lambda: backend.commit(succeed(first, ())), lambda: backend.commit(give_up(second, ()))]


# --- members are added while it runs


@race("add-x-batch-ends", succeed)
@race("add-x-batch-fails", give_up)
def adding_beside_the_end(backend: BatchBackend, end: Decide) -> Sequence[Script]:
    """The last member has ended. A view adds one more beside the poll that calls the callbacks."""
    last = with_last_member(backend)
    backend.commit(end(last, ()))
    due(backend)
    return [backend.add_member, lambda: poll_twice(backend)]


@race("add-and-add-x-batch-ends")
def adding_twice_beside_the_end(backend: BatchBackend) -> Sequence[Script]:
    last = with_last_member(backend)
    backend.commit(succeed(last, ()))
    due(backend)

    def add_two() -> None:
        backend.add_member()
        backend.add_member()

    return [add_two, lambda: poll_twice(backend)]


@race("add-from-last-member-x-batch-polls")
def adding_from_a_member(backend: BatchBackend) -> Sequence[Script]:
    """The last member adds another one, and ends."""
    last = with_last_member(backend)

    def add_and_end() -> None:
        backend.add_member()
        backend.commit(succeed(last, ()))

    def poll() -> None:
        due(backend)
        poll_twice(backend)

    return [add_and_end, poll]


# --- cancel


@race("cancel-batch-x-member-ends")
def cancelling_beside_an_end(backend: BatchBackend) -> Sequence[Script]:
    last = with_last_member(backend)

    def cancel() -> None:
        backend.cancel(backend.batch_id)
        poll_twice(backend)

    return [lambda: backend.commit(succeed(last, ())), cancel]


@race("cancel-batch-x-locked-member")
def cancelling_beside_a_claim(backend: BatchBackend) -> Sequence[Script]:
    """A member waits for a message, while the batch cancels its members and skips locked ones."""
    backend.add_batch(1)
    backend.cancel(backend.batch_id)

    def cancel() -> None:
        poll_twice(backend)
        poll_twice(backend)

    return [lambda: backend.poll(MEMBER, decide=suspend), cancel]


@race("cancel-batch-x-batch-ends")
def cancelling_beside_the_end(backend: BatchBackend) -> Sequence[Script]:
    last = with_last_member(backend)
    backend.commit(succeed(last, ()))
    due(backend)
    return [lambda: backend.cancel(backend.batch_id), lambda: poll_twice(backend)]


@race("cancel-batch-x-add")
def cancelling_beside_an_add(backend: BatchBackend) -> Sequence[Script]:
    with_last_member(backend)

    def cancel() -> None:
        backend.cancel(backend.batch_id)
        for _ in range(3):
            backend.poll_batch()

    return [backend.add_member, cancel]


@race("cancel-member-x-batch-polls")
def cancelling_a_member(backend: BatchBackend) -> Sequence[Script]:
    backend.add_batch(2)
    backend.poll(MEMBER, decide=succeed)
    (waiting,) = (pk for pk in backend.members if backend.engine.db.tasks.filter(pk=pk, status="READY").exists())
    return [lambda: backend.cancel(waiting), lambda: poll_twice(backend)]


# --- failed members are requeued


@race("requeue-member-x-batch-fails")
def requeueing_beside_the_end(backend: BatchBackend) -> Sequence[Script]:
    """A member has failed. It is requeued beside the polls that call on_failure, and fail the batch."""
    last = with_last_member(backend)
    backend.commit(give_up(last, ()))
    due(backend)
    return [lambda: backend.requeue(last.id), lambda: poll_twice(backend)]


@race("requeue-member-x-other-ends")
def requeueing_beside_an_end(backend: BatchBackend) -> Sequence[Script]:
    last = with_last_member(backend, give_up)
    (failed,) = (pk for pk in backend.members if pk != last.id)

    def end() -> None:
        backend.commit(succeed(last, ()))
        due(backend)
        poll_twice(backend)

    return [lambda: backend.requeue(failed), end]


@race("requeue-batch-x-requeue-member")
def requeueing_both(backend: BatchBackend) -> Sequence[Script]:
    failed = failed_batch(backend)

    def requeue_batch() -> None:
        backend.requeue(backend.batch_id)
        backend.poll_batch()

    return [lambda: backend.requeue(failed), requeue_batch]


@race("requeue-and-end-x-batch-polls")
def ending_again(backend: BatchBackend) -> Sequence[Script]:
    """The member of a FAILED batch is requeued and ends again, beside the polls of the batch."""
    failed = failed_batch(backend)

    def run_again() -> None:
        backend.requeue(failed)
        backend.poll(MEMBER, decide=succeed)

    return [run_again, lambda: poll_twice(backend)]


# --- crashes


@race("crash-before-last-poll-x-rescue", after=False)
@race("crash-after-last-poll-x-rescue", after=True)
def crashing_at_the_last_poll(backend: BatchBackend, *, after: bool) -> Sequence[Script]:
    """The process ends at the commit that counts the last end and enqueues the callbacks."""
    backend.add_batch(1)
    backend.poll(MEMBER, decide=succeed)
    old = backend.lose(BATCH_QUEUE)

    def new_owner() -> None:
        backend.rescue()
        poll_twice(backend)

    return [lambda: backend.crash_in(old, after=after), new_owner]


@race("old-owner-polls-x-new-owner-polls")
def polling_twice(backend: BatchBackend) -> Sequence[Script]:
    """An executor that seemed to be lost runs the last poll, while another one runs it, too."""
    backend.add_batch(1)
    backend.poll(MEMBER, decide=give_up)
    old = backend.lose(BATCH_QUEUE)

    def new_owner() -> None:
        backend.rescue()
        poll_twice(backend)

    return [lambda: backend.run_poll(old), new_owner]


@race("crash-after-add-x-batch-ends", after=True)
@race("crash-before-add-x-batch-ends", after=False)
def crashing_at_an_add(backend: BatchBackend, *, after: bool) -> Sequence[Script]:
    last = with_last_member(backend)
    backend.commit(succeed(last, ()))
    due(backend)

    def add() -> None:
        with crash_at_commit(after=after):
            backend.add_member()
        backend.needs_sweep = True
        backend.note_member()

    return [add, lambda: poll_twice(backend)]

"""Many messages, in circles and in all orders: backoff holds, each message is read once, without deadlocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.db import connection, connections

import jobqueue
from jobqueue import Actor, Backoff, Done, PollContext, Send, Suspend
from jobqueue.engine import engine_for
from jobqueue.models import InboxMessage, Task
from jobqueue.values.states import Status
from tests.executor.conftest import start  # noqa: F401 - a fixture
from tests.executor.harness import Start, on_postgresql
from tests.waiting import wait_until

pytestmark = on_postgresql
BACKOFF_SECONDS = 0.3
TRIES = 4
PEERS, ROUNDS = 12, 6
MANY = 10_000

tried_at: dict[UUID, list[Any]] = {}


class Stumbler(Actor, max_attempts=TRIES, backoff=Backoff(base=BACKOFF_SECONDS, factor=1.0, jitter=0.0)):
    """Fails in each poll, with any messages."""

    def poll(self, context: PollContext[Any]) -> Any:
        tried_at.setdefault(UUID(str(context.id)), []).append(engine_for("default").db.now())
        raise ValueError("as asked")


class Gossip(Actor, max_attempts=1):
    """Sends each new message to itself and all others, in its own order."""

    @dataclass
    class State:
        heard: int = 0

    def poll(self, context: PollContext[Any], number: int) -> Any:
        heard = [message.body for message in context.inbox.take()]
        context.state.heard += len(heard)
        if context.state.heard == PEERS * ROUNDS:
            return Done(context.state.heard)
        rounds = [round_ + 1 for sender, round_ in heard if sender == number and round_ < ROUNDS]
        names = [f"peer {peer}" for peer in (range(PEERS) if number % 2 else reversed(range(PEERS)))]
        return [*(Send(name, [number, round_]) for round_ in rounds for name in names), Suspend()]


class StormReceiver(Actor):
    def poll(self, context: PollContext[Any]) -> Any:
        return Suspend()


class Crier(Actor, max_attempts=1):
    """Sends to all peers at once, in random order."""

    def poll(self, context: PollContext[Any], ids: list[str]) -> Any:
        return [*(Send(UUID(pk), "news") for pk in ids), Done(len(ids))]


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_storm_of_messages_makes_no_failing_task_fail_faster(start: Start) -> None:  # noqa: F811
    start(threads=2, poll_interval=0.05)
    pk = UUID(Stumbler.enqueue().id)
    is_done, sent = threading.Event(), 0

    def storm() -> None:
        nonlocal sent
        try:
            while not is_done.is_set():
                jobqueue.send(pk, sent)
                sent += 1
        except jobqueue.TaskFinished:
            pass
        finally:
            connections.close_all()

    sender = threading.Thread(target=storm)
    sender.start()
    try:
        wait_until(lambda: Task.objects.filter(pk=pk, status=Status.FAILED).exists(), "the last try")
    finally:
        is_done.set()
        sender.join()

    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(tried_at.pop(pk))]
    assert len(waits) == TRIES - 1
    assert min(waits) >= BACKOFF_SECONDS
    assert sent > TRIES
    # After a requeue it reads them.
    assert InboxMessage.objects.filter(task_id=pk, consumed_at=None).count() == sent


def test_all_write_to_all_and_themselves_in_opposite_orders(start: Start) -> None:  # noqa: F811
    before = deadlocks()
    pks = [UUID(Gossip.using(key=f"peer {number}").enqueue(number).id) for number in range(PEERS)]
    for _ in range(2):
        start(threads=4, poll_interval=0.05)
    for number in range(PEERS):
        for peer in pks:
            jobqueue.send(peer, [number, 1])

    rows = Task.objects.filter(pk__in=pks)
    wait_until(lambda: rows.filter(status=Status.SUCCESSFUL).count() == PEERS, "the end of all peers", 60.0)

    assert set(rows.values_list("return_value", flat=True)) == {PEERS * ROUNDS}
    assert deadlocks() == before


def test_one_poll_writes_to_ten_thousand(start: Start) -> None:  # noqa: F811
    listeners = [result.id for result in StormReceiver.using(queue_name="listeners").enqueue_many([((), {})] * MANY)]
    crier = Crier.enqueue([*listeners[1::2], *reversed(listeners[::2])])
    start(queues=("default",))

    wait_until(lambda: Task.objects.filter(pk=crier.id, status=Status.SUCCESSFUL).exists(), "the crier's end", 60.0)

    receivers = InboxMessage.objects.filter(body="news", sender_id=crier.id).values_list("task_id", flat=True)
    assert sorted(receivers) == sorted(map(UUID, listeners))

"""The moves of senders and administrators, in short transactions or in ones that stay open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.db import transaction

from jobqueue.engine.engine import Engine
from jobqueue.exceptions import TaskFinished, TaskNotFound
from jobqueue.models import Queue
from jobqueue.values.changes import CancelReport, RequeueReport
from jobqueue.values.ids import new_id
from jobqueue.values.records import NewTask
from jobqueue.values.states import FINAL, LIVE, Status
from verification.interleavings.backend import UNSUCCESSFUL
from verification.simulation import bodies
from verification.simulation.participants import SimulatedConnection
from verification.simulation.simulated_backend import ANSWER, InvariantViolated, SimulatedBackend

Record = Callable[[], None]  # records a move after its transaction has committed

NEW_LIFE = {
    "status": Status.READY,
    "attempts": 0,
    "executor_losses": 0,
    "cancel_requested_at": None,
    "finished_at": None,
}
DIES = 0.15  # probability that a sender dies between its commit and the wake


class UserMoves(SimulatedBackend):
    def some_task(self, *statuses: Status) -> UUID:
        """Return a task, mostly one in such a status. It may be pruned already."""
        status = self.status()
        fitting = [pk for pk in self.names if status.get(pk) in (statuses or LIVE)]
        return self.random.choice(fitting if fitting and self.random.random() < 0.8 else list(self.names))

    # --- senders

    def enqueue_one(self, engine: Engine) -> Record:
        key = self.random.choice([None, None, "k1", "k2"])
        new = NewTask(
            id=new_id(),
            task_type="tests.noop",
            queue_name=self.random.choice(bodies.QUEUES),
            priority=self.random.choice([-5, 0, 0, 5]),
            max_attempts=bodies.MAX_ATTEMPTS,
            wake_after_seconds=self.random.choice([None] * 6 + [*bodies.DELAYS_SECONDS]),
            key=key,
        )
        new = self.limited(new)
        (answer,) = engine.enqueues.enqueue([new])
        self.note(f"a sender enqueues{f' with the key {key}' if key else ''}: {'new' if answer.created else 'known'}")
        if not engine.db.tasks.live().filter(pk=answer.id, key=key).exists():
            raise InvariantViolated(f"{ANSWER}: {answer} is not a live task with the key {key}")
        return partial(self.record_created, new) if answer.created else nothing

    def send_one(self, engine: Engine) -> Record:
        """
        Send a message, sometimes a repeated one. The engine must refuse a receiver that has finished or is pruned.
        """
        receiver = self.some_task()
        self.sent += 1
        body, dedupe_key = f"m{self.sent}", self.random.choice([None, None, "d1", "d2"])
        status = engine.db.tasks.filter(pk=receiver).values_list("status", flat=True).first()
        is_repeat = (receiver, dedupe_key) in self.used_dedupe_keys
        message_key = ("message", body)
        self.records.receivers[message_key] = receiver
        repeat = f" with the dedupe key {dedupe_key}" if dedupe_key else ""
        text = f"a sender sends to {self.name(receiver)} ({status}){repeat}"
        try:
            with transaction.atomic(using=engine.database):
                ids = engine.messages.send([bodies.new_message(receiver, body, dedupe_key=dedupe_key)])
        except (TaskFinished, TaskNotFound) as error:
            self.note(f"{text}: {type(error).__name__}")
            self.records.refused.append(message_key)
            if is_repeat or status not in (None, *FINAL):
                raise InvariantViolated(
                    f"{ANSWER}: a message to a task that lives, or a repeat, was refused"
                ) from error
            return nothing
        self.note(f"{text}: {'sent' if ids else 'a repeat'}")
        if is_repeat == bool(ids) or (ids and status in (None, *FINAL)):
            raise InvariantViolated(f"{ANSWER}: {ids}, {'a repeat' if is_repeat else 'new'}, to one that is {status}")
        if not ids:
            return nothing
        self.records.refused.append(message_key)  # until its transaction commits
        return partial(self.note_sent, receiver, message_key, dedupe_key)

    def note_sent(self, receiver: UUID, message_key: tuple[str, object], dedupe_key: str | None) -> None:
        if dedupe_key is not None:
            self.used_dedupe_keys.add((receiver, dedupe_key))
        self.records.refused.remove(message_key)
        self.records.accepted.append(message_key)
        self.records.pending_wakes.add(receiver)
        if self.random.random() < DIES:
            self.note("  and dies")
        else:
            self.wake([receiver])

    # --- administrators

    def cancel_one(self, engine: Engine) -> Record:
        pk, tree = self.some_task(), self.random.random() < 0.4
        before = dict(engine.db.tasks.values_list("pk", "status"))
        report = engine.tasks.cancel([pk], tree=tree, wait=False)
        after = dict(engine.db.tasks.values_list("pk", "status"))
        ended = [pk for pk in after if before[pk] != after[pk]]
        self.note(f"an admin cancels {self.name(pk)}{' and its family' if tree else ''}: {describe_report(report)}")
        if any(after[pk] != Status.CANCELLED for pk in ended) or len(ended) != report.cancelled:
            raise InvariantViolated(
                f"{ANSWER}: {report}, but changed were {[(self.name(pk), after[pk]) for pk in ended]}"
            )
        if report.busy and not self.open_transactions:
            raise InvariantViolated(f"{ANSWER}: {report}, and no transaction holds a row")
        return partial(self.note_cancelled, pk, tree, report)

    def note_cancelled(self, pk: UUID, tree: bool, report: CancelReport) -> None:
        if tree and not report.busy:
            self.records.cancelled_trees.add(pk)
        self.read_cancel_requests()
        self.records.pending_wakes |= report.parents
        self.wake([pk for pk in self.names if pk in report.parents])

    def requeue_one(self, engine: Engine) -> Record:
        return self.requeue_this(engine, self.some_task(*UNSUCCESSFUL))

    def requeue_this(self, engine: Engine, pk: UUID) -> Record:
        status = engine.db.tasks.filter(pk=pk).values_list("status", flat=True).first()
        report = self.requeued(engine, pk)
        self.note(f"an admin requeues {self.name(pk)} ({status}): {describe_report(report)}")
        if report.requeued and status not in UNSUCCESSFUL:
            raise InvariantViolated(f"{ANSWER}: {report} of one that is {status}")
        life = engine.db.tasks.filter(pk=pk).values_list(*NEW_LIFE)
        is_limited = engine.db.tasks.filter(pk=pk).exclude(concurrency_key=None, rate_key=None).exists()
        expected = NEW_LIFE | ({"status": Status.BLOCKED} if is_limited else {})
        if report.requeued and life.get() != tuple(expected.values()):
            raise InvariantViolated(
                f"{ANSWER}: {self.name(pk)} was requeued with {life.get()} as {', '.join(NEW_LIFE)}"
            )
        return partial(self.note_requeued, pk) if report.requeued else nothing

    def requeued(self, engine: Engine, pk: UUID) -> RequeueReport:
        return engine.tasks.requeue([pk], wait=False)

    def note_requeued(self, pk: UUID) -> None:
        self.records.requeued[pk] += 1
        self.records.cancelled_trees.clear()  # a requeued task may be one of their children
        self.attempts[pk] = self.losses[pk] = 0

    def wake_now(self, engine: Engine) -> Record:
        suspended = [pk for pk, status in self.status().items() if status == Status.SUSPENDED]
        if suspended:
            pk = self.random.choice([pk for pk in self.names if pk in suspended])
            self.note(f"an admin wakes {self.name(pk)}")
            self.wake([pk])
        return nothing

    def pause_one(self, engine: Engine) -> Record:
        name = self.random.choice(bodies.QUEUES)
        self.paused ^= {name}
        self.note(f"an admin {'pauses' if name in self.paused else 'resumes'} {name}")
        paused_at = self.engine.db.now() if name in self.paused else None
        Queue.objects.update_or_create(backend=self.engine.alias, name=name, defaults={"paused_at": paused_at})
        return nothing

    def limit_one(self, engine: Engine) -> Record:
        name = self.random.choice(bodies.QUEUES)
        self.set_limit(name, self.random.choice([None, 1, 2]))
        return nothing

    def set_limit(self, name: str, limit: int | None) -> None:
        self.limits.pop(name, None)
        if limit is not None:
            self.limits[name] = limit
            running = self.engine.db.tasks.running().filter(queue_name=name).count()
            self.above_limit[name] = max(0, running - limit)  # running tasks continue
        self.note(f"an admin lets {limit or 'any number'} of {name} run at once")
        Queue.objects.update_or_create(backend=self.engine.alias, name=name, defaults={"max_running": limit})

    # --- short and long transactions

    def do(self, move: Callable[[Engine], Record]) -> None:
        """Make a move in its own transaction, which may wait for an open one."""
        self.session.set_application_name("users")

        def in_transaction() -> Record:
            with transaction.atomic(using=self.engine.database):
                return move(self.engine)

        record = self.patiently(in_transaction)
        if record is not None:
            record()

    def leave_open(self, connection: SimulatedConnection, move: Callable[[Engine], Record], *, locks: bool) -> None:
        """Make a move in a transaction that stays open."""
        connection.open("users", f"a transaction of {move.__name__}", locks=locks)
        self.note("in a transaction that stays open:")
        record = self.patiently(lambda: move(connection.engine))
        if record is None:
            connection.roll_back()
        else:
            connection.on_commit = record


def nothing() -> None:
    """Record nothing: the operation changed no row."""


def describe_report(report: CancelReport | RequeueReport) -> str:
    fields = {name: getattr(report, name) for name in type(report).__dataclass_fields__}
    return ", ".join(
        f"{name} {len(value) if isinstance(value, frozenset) else value}" for name, value in fields.items() if value
    )

"""What senders and admins do, in transactions that are short, or stay open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.db import transaction

from jobqueue.engine.engine import Engine
from jobqueue.exceptions import TaskFinished, TaskNotFound
from jobqueue.models import Queue
from jobqueue.records import FINAL, LIVE, CancelReport, NewTask, RequeueReport, Status
from jobqueue.serialization.ids import new_id
from verification.interleavings.world import ENDED_BADLY
from verification.simulation import bodies
from verification.simulation.actors import Session
from verification.simulation.stage import ANSWER, Stage, Wrong

Noted = Callable[[], None]  # what is to be written down once a transaction has committed

NEW_LIFE = {
    "status": Status.READY,
    "attempts": 0,
    "executor_losses": 0,
    "cancel_requested_at": None,
    "finished_at": None,
}
DIES = 0.15  # a sender, after its commit and before the wake-up


class People(Stage):
    def some_task(self, *statuses: Status) -> UUID:
        """One of those in such a state, as a rule; else any, which may be gone."""
        found = self.status()
        fitting = [pk for pk in self.names if found.get(pk) in (statuses or LIVE)]
        return self.chance.choice(fitting if fitting and self.chance.random() < 0.8 else list(self.names))

    # --- senders

    def enqueue_one(self, engine: Engine) -> Noted:
        key = self.chance.choice([None, None, "k1", "k2"])
        new = NewTask(
            id=new_id(),
            task_type="tests.noop",
            queue_name=self.chance.choice(bodies.QUEUES),
            priority=self.chance.choice([-5, 0, 0, 5]),
            max_attempts=bodies.MOST_ATTEMPTS,
            wake_after_seconds=self.chance.choice([None] * 6 + [*bodies.RESTS_SECONDS]),
            key=key,
        )
        (answer,) = engine.enqueue([new])
        self.note(
            f"a sender enqueues{f' with the key {key}' if key else ''}: {'yes' if answer.created else 'it lives'}"
        )
        if not engine.tasks.live().filter(pk=answer.id, key=key).exists():
            raise Wrong(f"{ANSWER}: {answer} is nobody who lives and holds the key {key}")
        return partial(self.note_born, new) if answer.created else nothing

    def send_one(self, engine: Engine) -> Noted:
        """A message, sometimes one that may be a repeat; a receiver that has ended or is gone is refused."""
        receiver = self.some_task()
        self.sent += 1
        body, dedupe_key = f"m{self.sent}", self.chance.choice([None, None, "d1", "d2"])
        status = engine.tasks.filter(pk=receiver).values_list("status", flat=True).first()
        is_repeat = (receiver, dedupe_key) in self.seen
        token = ("message", body)
        self.ledger.to[token] = receiver
        repeat = f" with the dedupe key {dedupe_key}" if dedupe_key else ""
        told = f"a sender tells {self.name(receiver)} ({status}){repeat}"
        try:
            with transaction.atomic(using=engine.database):
                ids = engine.send([bodies.message(receiver, body, dedupe_key=dedupe_key)])
        except (TaskFinished, TaskNotFound) as error:
            self.note(f"{told}: {type(error).__name__}")
            self.ledger.refused.append(token)
            if is_repeat or status not in (None, *FINAL):
                raise Wrong(f"{ANSWER}: a message to a task that lives, or a repeat, was refused") from error
            return nothing
        self.note(f"{told}: {'sent' if ids else 'a repeat'}")
        if is_repeat == bool(ids) or (ids and status in (None, *FINAL)):
            raise Wrong(f"{ANSWER}: {ids}, {'a repeat' if is_repeat else 'new'}, to one that is {status}")
        if not ids:
            return nothing
        self.ledger.refused.append(token)  # until its transaction has committed
        return partial(self.note_sent, receiver, token, dedupe_key)

    def note_sent(self, receiver: UUID, token: tuple[str, object], dedupe_key: str | None) -> None:
        if dedupe_key is not None:
            self.seen.add((receiver, dedupe_key))
        self.ledger.refused.remove(token)
        self.ledger.accepted.append(token)
        self.ledger.owed.add(receiver)
        if self.chance.random() < DIES:
            self.note("  and dies")
        else:
            self.wake([receiver])

    # --- admins

    def cancel_one(self, engine: Engine) -> Noted:
        pk, tree = self.some_task(), self.chance.random() < 0.4
        before = dict(engine.tasks.values_list("pk", "status"))
        report = engine.cancel([pk], tree=tree, wait=False)
        after = dict(engine.tasks.values_list("pk", "status"))
        ended = [one for one in after if before[one] != after[one]]
        self.note(f"an admin cancels {self.name(pk)}{' and its family' if tree else ''}: {told(report)}")
        if any(after[one] != Status.CANCELLED for one in ended) or len(ended) != report.cancelled:
            raise Wrong(f"{ANSWER}: {report}, but changed were {[(self.name(one), after[one]) for one in ended]}")
        if report.busy and not self.open_sides:
            raise Wrong(f"{ANSWER}: {report}, and nobody holds a row")
        return partial(self.note_cancelled, pk, tree, report)

    def note_cancelled(self, pk: UUID, tree: bool, report: CancelReport) -> None:
        if tree and not report.busy:
            self.ledger.doomed.add(pk)
        self.read_asked()
        self.ledger.owed |= report.parents
        self.wake([one for one in self.names if one in report.parents])

    def requeue_one(self, engine: Engine) -> Noted:
        return self.requeue_this(engine, self.some_task(*ENDED_BADLY))

    def requeue_this(self, engine: Engine, pk: UUID) -> Noted:
        status = engine.tasks.filter(pk=pk).values_list("status", flat=True).first()
        report = self.requeued(engine, pk)
        self.note(f"an admin requeues {self.name(pk)} ({status}): {told(report)}")
        if report.requeued and status not in ENDED_BADLY:
            raise Wrong(f"{ANSWER}: {report} of one that is {status}")
        life = engine.tasks.filter(pk=pk).values_list(*NEW_LIFE)
        if report.requeued and life.get() != tuple(NEW_LIFE.values()):
            raise Wrong(f"{ANSWER}: {self.name(pk)} was requeued with {life.get()} as {', '.join(NEW_LIFE)}")
        return partial(self.note_requeued, pk) if report.requeued else nothing

    def requeued(self, engine: Engine, pk: UUID) -> RequeueReport:
        return engine.requeue([pk], wait=False)

    def note_requeued(self, pk: UUID) -> None:
        self.ledger.requeued[pk] += 1
        self.ledger.doomed.clear()  # one of them lives again
        self.attempts[pk] = self.losses[pk] = 0

    def wake_now(self, engine: Engine) -> Noted:
        sleepers = [pk for pk, status in self.status().items() if status == Status.SUSPENDED]
        if sleepers:
            pk = self.chance.choice([one for one in self.names if one in sleepers])
            self.note(f"an admin wakes {self.name(pk)}")
            self.wake([pk])
        return nothing

    def pause_one(self, engine: Engine) -> Noted:
        name = self.chance.choice(bodies.QUEUES)
        self.paused ^= {name}
        self.note(f"an admin {'pauses' if name in self.paused else 'resumes'} {name}")
        paused_at = self.engine.now() if name in self.paused else None
        Queue.objects.update_or_create(backend=self.engine.alias, name=name, defaults={"paused_at": paused_at})
        return nothing

    def limit_one(self, engine: Engine) -> Noted:
        name = self.chance.choice(bodies.QUEUES)
        self.set_limit(name, self.chance.choice([None, 1, 2]))
        return nothing

    def set_limit(self, name: str, most: int | None) -> None:
        self.limits.pop(name, None)
        if most is not None:
            self.limits[name] = most
            running = self.engine.tasks.running().filter(queue_name=name).count()
            self.over[name] = max(0, running - most)  # they run on
        self.note(f"an admin lets {most or 'any number'} of {name} run at once")
        Queue.objects.update_or_create(backend=self.engine.alias, name=name, defaults={"max_running": most})

    # --- short or long

    def do(self, move: Callable[[Engine], Noted]) -> None:
        """In a transaction of its own, which may have to wait for an open one."""
        self.session.call_itself("people")

        def in_transaction() -> Noted:
            with transaction.atomic(using=self.engine.database):
                return move(self.engine)

        noted = self.patiently(in_transaction)
        if noted is not None:
            noted()

    def leave_open(self, side: Session, move: Callable[[Engine], Noted], *, locks: bool) -> None:
        side.open("people", f"a transaction of {move.__name__}", locks=locks)
        self.note("in a transaction that stays open:")
        noted = self.patiently(lambda: move(side.engine))
        if noted is None:
            side.roll_back()
        else:
            side.on_commit = noted


def nothing() -> None:
    """What there is to write down of a verb that changed nothing."""


def told(report: CancelReport | RequeueReport) -> str:
    fields = {name: getattr(report, name) for name in type(report).__dataclass_fields__}
    return ", ".join(
        f"{name} {len(value) if isinstance(value, frozenset) else value}" for name, value in fields.items() if value
    )

"""What a play takes place on: the rows, who acts on them, the clock, and what each verb must have answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TypeVar
from uuid import UUID

from django.db import OperationalError, connections

from jobqueue.conf import parse
from jobqueue.engine.engine import Engine
from jobqueue.records import FINAL, ClaimedTask, CommitResult, NewTask, Outcome, Status
from verification.interleavings.world import World
from verification.simulation import bodies
from verification.simulation.actors import Member, Session

T = TypeVar("T")

TIMEOUT_SECONDS = 25.0
TICK_SECONDS = 10.0
OPTIONS = parse(
    {
        "DATABASE": "default",
        "HEARTBEAT_TIMEOUT": TIMEOUT_SECONDS,
        "MAX_EXECUTOR_LOSSES": 3,
        "RETENTION": {"SUCCESSFUL": 35, "FAILED": 65, "CANCELLED": 35},
    }
)
ADVANCE = """
    UPDATE jobqueue_task
    SET rank = rank - %(by)s, wake_at = wake_at - %(by)s, claimed_at = claimed_at - %(by)s,
        timeout_at = timeout_at - %(by)s,
        enqueued_at = enqueued_at - %(by)s, last_attempted_at = last_attempted_at - %(by)s,
        finished_at = finished_at - %(by)s
    WHERE backend = %(backend)s;
    UPDATE jobqueue_inboxmessage SET sent_at = sent_at - %(by)s
    WHERE task_id IN (SELECT id FROM jobqueue_task WHERE backend = %(backend)s);
    UPDATE jobqueue_executor SET heartbeat = heartbeat - %(by)s WHERE backend = %(backend)s
"""
ENDED = "SELECT task_id, after, count(*) FROM trust_change WHERE after = ANY(%s) AND before <> ALL(%s) GROUP BY 1, 2"

STOLEN = "nothing is taken from the living"
WAITED = "an executor waits for nobody's transaction"
TAKEN_FOR_LOST = "a claim is lost only to another"
SKIPPED = "only what somebody has locked is left for later"
BEAT = "a beat tells what its executor holds"
CLAIMED_RIGHT = "only what is READY, and may run, is claimed"
WOKEN = "the sweep wakes who has mail"
EARLY = "no alarm rings before its time"
COUNTED = "what happens is counted"
ANSWER = "a verb answers what it did"


class Wrong(Exception):
    """What must not be."""


class Stage(World):
    """A world with a clock, connections whose transactions stay open, and a diary."""

    def __init__(self, kind: type[Engine], seed: int, databases: Sequence[str]) -> None:
        super().__init__(kind)
        self.chance = Random(seed)
        engines = [kind(self.engine.alias, replace(OPTIONS, database=name)) for name in databases]
        self.session, *self.sides = [Session(engine) for engine in engines]
        self.engine = engines[0]
        self.now = 0.0
        self.members: list[Member] = []
        self.holders: dict[tuple[UUID, int], Member] = {}
        self.claimed: dict[tuple[UUID, int], ClaimedTask] = {}
        self.queue_of: dict[UUID, str] = {}
        self.asked: set[UUID] = set()  # to be cancelled, and running
        self.attempts: Counter[UUID] = Counter()  # as they must be in the rows, and the losses
        self.losses: Counter[UUID] = Counter()
        self.counted: dict[str, Counter[str]] = {}
        self.diary: list[str] = []
        # What admins have said of queues. over: how many more ran than a limit, when it was set.
        self.paused: set[str] = set()
        self.limits: dict[str, int] = {}
        self.over: dict[str, int] = {}
        self.sent = 0
        self.seen: set[tuple[UUID, str | None]] = set()  # messages of which repeats do nothing
        for session in (self.session, *self.sides):
            session.prepare()

    # --- who, what, when

    @property
    def open_sides(self) -> list[Session]:
        return [side for side in self.sides if side.is_open]

    @property
    def awake(self) -> list[Member]:
        return [member for member in self.members if not member.is_frozen and not member.is_dead]

    def note(self, text: str) -> None:
        self.diary.append(text)

    def name(self, pk: UUID) -> str:
        return self.names.get(pk, "?")

    def new_member(self) -> Member:
        member = Member(f"executor-{len(self.members) + 1}", self.now)
        self.members.append(member)
        self.beat(member)
        return member

    def advance(self, seconds: float) -> None:
        """Let time pass for what is stored; executors that live beat in time."""
        with connections["default"].cursor() as cursor:
            cursor.execute(ADVANCE.replace("%(by)s", f"interval '{seconds:g} seconds'"), {"backend": self.engine.alias})
        self.now += seconds
        self.note(f"{seconds:g} s pass")
        for member in self.awake:
            self.beat(member)

    def status(self) -> dict[UUID, str]:
        return dict(self.engine.tasks.values_list("pk", "status"))

    def patiently(self, verb: Callable[[], T]) -> T | None:
        """Do what may wait for an open transaction, which then never ends: None when it gave up."""
        try:
            return verb()
        except OperationalError as error:
            if not is_lock_timeout(error) or not self.open_sides:
                raise
            self.note("  gives up waiting")
            return None

    @contextmanager
    def not_waiting(self) -> Iterator[None]:
        try:
            yield
        except OperationalError as error:
            if is_lock_timeout(error):
                raise Wrong(f"{WAITED}: {self.diary[-1]}") from error
            raise

    # --- heartbeat

    def beat(self, member: Member) -> None:
        """What it is told to hold is what it has claimed and has not ended."""
        self.session.call_itself(member.name)
        with self.not_waiting():
            held = self.engine.heartbeat(member.sign)
        member.beat_at, member.is_steady = self.now, True
        answer = {(one.id, one.claim_number) for one in held}
        right = {claim for claim, holder in self.holders.items() if holder is member and self.is_held(claim)}
        if answer != right:
            raise Wrong(f"{BEAT}: {member.name} was told {self.told(answer)}, and holds {self.told(right)}")
        for one in held:
            if one.is_cancel_requested != (one.id in self.asked):
                raise Wrong(f"{BEAT}: {member.name} was told of {self.name(one.id)}: {one}, asked for {self.asked}")

    def is_held(self, claim: tuple[UUID, int]) -> bool:
        return claim not in self.ledger.endings

    def told(self, claims: Collection[tuple[UUID, int]]) -> str:
        return ", ".join(sorted(f"{self.name(pk)}/{number}" for pk, number in claims)) or "nothing"

    # --- commit

    def take_answer(self, member: Member, results: Sequence[Outcome], answer: CommitResult) -> list[Outcome]:
        """Write down what was done, see whether it may be so; gives what is to be committed again."""
        again = [self._refused(one, answer) for one in self._note_answer(results, answer)]
        for result in results:
            claim = (result.task_id, result.claim_number)
            if result.task_id in answer.lost and self.is_held(claim):
                raise Wrong(f"{TAKEN_FOR_LOST}: {self.told([claim])} of {member.name}")
        if answer.unknown and not self.open_sides:
            raise Wrong(f"{SKIPPED}: {[self.name(pk) for pk in answer.unknown]}")
        if len(answer.done) + len(answer.lost) + len(answer.unknown) + len(answer.refused) != len(results):
            raise Wrong(f"{ANSWER}: {answer} to {results}")
        if any(result.effects.cancel_children for result in results):
            self.read_asked()
        self.ledger.owed |= answer.wake
        done = [f"{self.name(pk)} {status}" for pk, status in answer.done.items()]
        rest = [f"{self.name(pk)} {what}" for what in ("lost", "unknown", "refused") for pk in getattr(answer, what)]
        self.note(f"  {', '.join(done + rest) or 'nothing'}")
        return again

    def _refused(self, result: Outcome, answer: CommitResult) -> Outcome:
        """A poll that the engine refuses has failed."""
        if result.task_id not in answer.refused:
            return result
        return bodies.failing(self.claimed[result.task_id, result.claim_number], rest=bodies.RESTS_SECONDS[0])

    def _note_done(self, result: Outcome, entered: Status) -> None:
        super()._note_done(result, entered)
        self.asked.discard(result.task_id)
        self.attempts[result.task_id] = result.attempts
        before = self.claimed[result.task_id, result.claim_number]
        has_failed = result.attempts > before.attempts and result.status is not Status.CANCELLED
        if result.worker_id is not None or entered is Status.FAILED:
            self.count(
                result.task_id,
                attempts=result.worker_id is not None,
                completed=entered is Status.SUCCESSFUL,
                failed=has_failed,
                retries=has_failed and entered is Status.SCHEDULED,
                dead=entered is Status.FAILED,
            )
        if entered is not Status.CANCELLED:
            for child in result.effects.spawn:
                self.note_born(child)

    def _note_end(self, task_id: UUID, status: Status) -> None:
        """The record tells who ended: also those that ended with others."""

    def note_born(self, new: NewTask) -> None:
        self.names[new.id] = f"t{len(self.queue_of) + 1}"
        self.queue_of[new.id] = new.queue_name
        self.count(new.id, submitted=1)

    def count(self, pk: UUID, **numbers: int) -> None:
        self.counted.setdefault(self.queue_of[pk], Counter()).update(numbers)

    def read_asked(self) -> None:
        asked = self.engine.tasks.running().filter(cancel_requested_at__isnull=False)
        self.asked = set(asked.values_list("pk", flat=True))

    def read_ended(self) -> None:
        """Read from the record how often each task ended."""
        self.ledger.ended.clear()
        self.ledger.ended_badly.clear()
        with connections["default"].cursor() as cursor:
            cursor.execute(ENDED, [list(FINAL), list(FINAL)])
            for pk, status, number in cursor.fetchall():
                self.ledger.ended[pk] += number
                self.ledger.ended_badly[pk] += number if status != Status.SUCCESSFUL else 0

    # --- wake

    def wake(self, ids: Collection[UUID]) -> None:
        """What comes after a commit: only a hint, which may give up."""
        woken = [pk for pk in ids if pk in self.names]
        try:
            self.engine.wake(woken)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            self.note("  is left to the sweep")
        else:
            self.ledger.owed -= set(woken)


def is_lock_timeout(error: Exception) -> bool:
    return getattr(error.__cause__, "sqlstate", "") == "55P03"

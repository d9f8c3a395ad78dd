"""The state of a simulation: rows, participants and clock. Each answer of the engine is checked here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TypeVar
from uuid import UUID

from django.db import OperationalError, connections

from jobqueue.conf.options import parse_options
from jobqueue.engine.engine import Engine
from jobqueue.values.records import ClaimedTask, CommitResult, NewTask, Outcome
from jobqueue.values.states import FINAL, Status
from verification.interleavings.backend import IsolatedBackend
from verification.simulation import bodies
from verification.simulation.participants import SimulatedConnection, SimulatedExecutor

T = TypeVar("T")

TIMEOUT_SECONDS = 25.0
TICK_SECONDS = 10.0
OPTIONS = parse_options(
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
    UPDATE jobqueue_heartbeat SET at = at - %(by)s
    WHERE executor_id IN (SELECT id FROM jobqueue_executor WHERE backend = %(backend)s);
    UPDATE jobqueue_admissionrequest SET due_at = due_at - %(by)s WHERE backend = %(backend)s;
    UPDATE jobqueue_ratestart SET started_at = started_at - %(by)s, expires_at = expires_at - %(by)s
    WHERE backend = %(backend)s
"""
ENDED = (
    "SELECT task_id, after, count(*) FROM verification_change WHERE after = ANY(%s) AND before <> ALL(%s) GROUP BY 1, 2"
)

STOLEN = "no claim is taken from a live executor"
WAITED = "an executor does not wait for other transactions"
TAKEN_FOR_LOST = "a claim is lost only to a newer claim"
SKIPPED = "only locked rows are left for a later commit"
BEAT = "a heartbeat returns the claims of its executor"
CLAIMED_RIGHT = "only READY tasks that may run are claimed"
WOKEN = "the sweep wakes exactly the tasks with messages"
EARLY = "no task is woken before its time"
COUNTED = "counters match the events"
ANSWER = "an operation returns what it did"
REST = "every task ends"
RATE = "no window has more starts than the rate"


class InvariantViolated(Exception):
    """The engine's answer or the rows violate an invariant."""


class SimulatedBackend(IsolatedBackend):
    """
    A backend with a clock, open transactions, and a diary of all moves.

    It has more than 20 methods and more than 15 attributes because all moves share what the rows are expected to be.
    """

    def __init__(self, kind: type[Engine], seed: int, databases: Sequence[str], *, has_limits: bool = False) -> None:
        super().__init__(kind)
        self.random = Random(seed)
        self.has_limits = has_limits
        self.limits_of: dict[UUID, dict[str, object]] = {}  # as in the notes of a campaign
        self.starts: list[float] = []  # of tasks with the rate
        engines = [kind(self.engine.alias, replace(OPTIONS, database=name)) for name in databases]
        self.session, *self.other_connections = [SimulatedConnection(engine) for engine in engines]
        self.engine = engines[0]
        self.now = 0.0
        self.executors: list[SimulatedExecutor] = []
        self.holders: dict[tuple[UUID, int], SimulatedExecutor] = {}
        self.claimed_at: dict[tuple[UUID, int], float] = {}
        self.claim_details: dict[tuple[UUID, int], ClaimedTask] = {}
        self.queue_of: dict[UUID, str] = {}
        self.cancel_requested: set[UUID] = set()  # RUNNING tasks with a cancel request
        self.attempts: Counter[UUID] = Counter()  # expected in the rows, like the losses
        self.losses: Counter[UUID] = Counter()
        self.expected_counters: dict[str, Counter[str]] = {}
        self.diary: list[str] = []
        # What users have set for queues. above_limit: tasks beyond the limit when it was set.
        self.paused: set[str] = set()
        self.limits: dict[str, int] = {}
        self.above_limit: dict[str, int] = {}
        self.sent = 0
        self.used_dedupe_keys: set[tuple[UUID, str | None]] = set()  # a repeated message with one of them is ignored
        for session in (self.session, *self.other_connections):
            session.prepare()

    # --- participants, names, clock

    @property
    def open_transactions(self) -> list[SimulatedConnection]:
        return [connection for connection in self.other_connections if connection.is_open]

    @property
    def rows_are_locked(self) -> bool:
        return any(connection.locks for connection in self.open_transactions)

    @property
    def awake(self) -> list[SimulatedExecutor]:
        return [executor for executor in self.executors if not executor.is_frozen and not executor.is_dead]

    def note(self, text: str) -> None:
        self.diary.append(text)

    def name(self, pk: UUID) -> str:
        return self.names.get(pk, "?")

    def start_executor(self) -> SimulatedExecutor:
        executor = SimulatedExecutor(f"executor-{len(self.executors) + 1}", self.now)
        self.executors.append(executor)
        self.heartbeat(executor)
        return executor

    def advance(self, seconds: float) -> None:
        """Move the clock forward in all rows. Awake executors send heartbeats in time."""
        with connections["default"].cursor() as cursor:
            cursor.execute(ADVANCE.replace("%(by)s", f"interval '{seconds:g} seconds'"), {"backend": self.engine.alias})
        self.now += seconds
        self.note(f"{seconds:g} s pass")
        for executor in self.awake:
            self.heartbeat(executor)

    def status(self) -> dict[UUID, str]:
        return dict(self.engine.db.tasks.values_list("pk", "status"))

    def patiently(self, operation: Callable[[], T]) -> T | None:
        """Call an operation that may wait for an open transaction. Return None on a lock timeout."""
        try:
            return operation()
        except OperationalError as error:
            if not is_lock_timeout(error) or not self.open_transactions:
                raise
            self.note("  gives up waiting")
            return None

    @contextmanager
    def not_waiting(self) -> Iterator[None]:
        try:
            yield
        except OperationalError as error:
            if is_lock_timeout(error):
                raise InvariantViolated(f"{WAITED}: {self.diary[-1]}") from error
            raise

    # --- heartbeat

    def heartbeat(self, executor: SimulatedExecutor) -> None:
        """Send a heartbeat. The answer must contain exactly the executor's current claims."""
        self.session.set_application_name(executor.name)
        with self.not_waiting():
            held = self.engine.executors.heartbeat(executor.info) or []
        executor.last_heartbeat, executor.is_steady = self.now, True
        answer = {(claim.id, claim.claim_number) for claim in held}
        expected = {claim for claim, holder in self.holders.items() if holder is executor and self.is_held(claim)}
        if answer != expected:
            raise InvariantViolated(
                f"{BEAT}: {executor.name} got {self.describe_claims(answer)}, expected {self.describe_claims(expected)}"
            )
        for claim in held:
            if claim.is_cancel_requested != (claim.id in self.cancel_requested):
                raise InvariantViolated(
                    f"{BEAT}: {executor.name} got {self.name(claim.id)}: {claim}, requested: {self.cancel_requested}"
                )

    def is_held(self, claim: tuple[UUID, int]) -> bool:
        return claim not in self.records.endings

    def describe_claims(self, claims: Collection[tuple[UUID, int]]) -> str:
        return ", ".join(sorted(f"{self.name(pk)}/{number}" for pk, number in claims)) or "nothing"

    # --- commit

    def record_result(
        self, executor: SimulatedExecutor, results: Sequence[Outcome], answer: CommitResult
    ) -> list[Outcome]:
        """Record and check the answer to a commit. Return the outcomes to commit again."""
        again = [self._refused(outcome, answer) for outcome in self._record_result(results, answer)]
        for result in results:
            claim = (result.task_id, result.claim_number)
            if result.task_id in answer.lost and self.is_held(claim):
                raise InvariantViolated(f"{TAKEN_FOR_LOST}: {self.describe_claims([claim])} of {executor.name}")
        if answer.unknown and not self.open_transactions:
            raise InvariantViolated(f"{SKIPPED}: {[self.name(pk) for pk in answer.unknown]}")
        if len(answer.done) + len(answer.lost) + len(answer.unknown) + len(answer.refused) != len(results):
            raise InvariantViolated(f"{ANSWER}: {answer} to {results}")
        if any(result.effects.cancel_children for result in results):
            self.read_cancel_requests()
        self.records.pending_wakes |= answer.wake
        done = [f"{self.name(pk)} {status}" for pk, status in answer.done.items()]
        rest = [f"{self.name(pk)} {what}" for what in ("lost", "unknown", "refused") for pk in getattr(answer, what)]
        self.note(f"  {', '.join(done + rest) or 'nothing'}")
        return again

    def _refused(self, result: Outcome, answer: CommitResult) -> Outcome:
        """Return the outcome of a poll that the engine refused: a failure."""
        if result.task_id not in answer.refused:
            return result
        return bodies.failing(self.claim_details[result.task_id, result.claim_number], rest=bodies.DELAYS_SECONDS[0])

    def _record_done(self, result: Outcome, entered: Status) -> None:
        super()._record_done(result, entered)
        self.cancel_requested.discard(result.task_id)
        self.attempts[result.task_id] = result.attempts
        if result.has_succeeded and entered not in FINAL:
            self.losses[result.task_id] = 0
        before = self.claim_details[result.task_id, result.claim_number]
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
                self.record_created(child)

    def _record_finished(self, task_id: UUID, status: Status) -> None:
        """Do nothing: the server's record has all finished tasks, also those cancelled with their parent."""

    def limited(self, new: NewTask) -> NewTask:
        """Return a new task, sometimes with limits."""
        return bodies.with_limits(self.random, new) if self.has_limits else new

    def record_created(self, new: NewTask) -> None:
        if new.concurrency_key is not None:
            self.limits_of[new.id] = {"key": new.concurrency_key, "number": new.concurrency_limit}
        self.names[new.id] = f"t{len(self.queue_of) + 1}"
        self.queue_of[new.id] = new.queue_name
        self.count(new.id, submitted=1)

    def count(self, pk: UUID, **numbers: int) -> None:
        self.expected_counters.setdefault(self.queue_of[pk], Counter()).update(numbers)

    def read_cancel_requests(self) -> None:
        requested = self.engine.db.tasks.running().filter(cancel_requested_at__isnull=False)
        self.cancel_requested = set(requested.values_list("pk", flat=True))

    def read_ended(self) -> None:
        """Count in the server's record how often each task ended."""
        self.records.ended.clear()
        self.records.ended_unsuccessfully.clear()
        with connections["default"].cursor() as cursor:
            cursor.execute(ENDED, [list(FINAL), list(FINAL)])
            for pk, status, number in cursor.fetchall():
                self.records.ended[pk] += number
                self.records.ended_unsuccessfully[pk] += number if status != Status.SUCCESSFUL else 0

    # --- wake

    def wake(self, ids: Collection[UUID]) -> None:
        """Wake tasks after a commit. A lock timeout is allowed: the sweep wakes them later."""
        woken = [pk for pk in ids if pk in self.names]
        try:
            self.engine.messages.wake(woken)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            self.note("  gives up: the sweep wakes it later")
        else:
            self.records.pending_wakes -= set(woken)


def is_lock_timeout(error: Exception) -> bool:
    return getattr(error.__cause__, "sqlstate", "") == "55P03"

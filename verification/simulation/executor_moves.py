"""The moves of executors. Each is one operation of the engine, or two that belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from uuid import UUID

from msgspec import structs

from jobqueue.executor.running.task_runner import LATEST_START_PART
from jobqueue.models.clock import clock_to_compare
from jobqueue.values.records import ClaimedTask, ClaimRequest, Outcome, Start, release_outcome
from jobqueue.values.states import FINAL, Status
from verification.simulation import bodies
from verification.simulation.participants import SimulatedConnection, SimulatedExecutor
from verification.simulation.simulated_backend import (
    ANSWER,
    CLAIMED_RIGHT,
    COUNTED,
    EARLY,
    OPTIONS,
    RATE,
    STOLEN,
    TAKEN_FOR_LOST,
    TICK_SECONDS,
    TIMEOUT_SECONDS,
    WOKEN,
    InvariantViolated,
    SimulatedBackend,
)

SLOTS = 4
ISOLATION_LOSSES = 2
MAX_TASKS = 20


class ExecutorMoves(SimulatedBackend):
    """What executors do. It has more than 20 methods because each move and its check are methods."""

    def claim_some(self, executor: SimulatedExecutor) -> None:
        request = self.request(executor)
        is_idle = not executor.claimed and not executor.uncommitted
        is_isolated = is_idle and self.random.random() < 0.3
        with self.not_waiting():
            claims = self.engine.claims.claim_isolated(request) if is_isolated else self.engine.claims.claim(request)
        self.record_claims(executor, request, claims, is_isolated=is_isolated)

    def request(self, executor: SimulatedExecutor) -> ClaimRequest:
        queues = [name for name in bodies.QUEUES if self.random.random() < 0.8] or list(bodies.QUEUES)
        return ClaimRequest(
            executor_id=executor.id,
            queues=queues,
            limit=self.random.randint(1, SLOTS - 1),
            limited=sorted(self.limits),
        )

    def record_claims(
        self,
        executor: SimulatedExecutor,
        request: ClaimRequest,
        claims: Sequence[ClaimedTask],
        *,
        is_isolated: bool = False,
    ) -> None:
        self.note(f"{executor.name} claims {', '.join(self.name(claim.id) for claim in claims) or 'nothing'}")
        for task in claims:
            claim = (task.id, task.claim_number)
            self.records.claims.append(claim)
            self.claimed_at[claim] = self.now
            self.holders[claim], self.claim_details[claim] = executor, task
            is_allowed = task.queue_name in request.queues and task.queue_name not in self.paused
            if (
                not is_allowed
                or task.id in self.cancel_requested
                or (task.executor_losses >= ISOLATION_LOSSES) != is_isolated
            ):
                raise InvariantViolated(
                    f"{CLAIMED_RIGHT}: {self.name(task.id)}, {task}, by {request}, paused {self.paused}"
                )
            actual, expected = (task.claim_number, task.attempts, task.executor_losses), self.expected_counts(task)
            if actual != expected:
                raise InvariantViolated(
                    f"{COUNTED}: {self.name(task.id)} has {actual} claims, attempts and losses, expected {expected}"
                )
        if len(claims) > request.limit:
            raise InvariantViolated(f"{CLAIMED_RIGHT}: {len(claims)} tasks by {request}")
        # An older claim of the same executor, from before it was frozen, is replaced.
        ids = {claim.id for claim in claims}
        executor.uncommitted = [result for result in executor.uncommitted if result.task_id not in ids]
        executor.claimed = [claim for claim in executor.claimed if claim.id not in ids] + list(claims)
        self.check_limits()

    def check_rate(self) -> None:
        """Note a start at the rate. The start before so many others must have left the window."""
        self.starts.append(self.now)
        earlier = self.starts[: -bodies.RATE_LIMIT]
        if earlier and self.now - earlier[-1] < bodies.RATE_SECONDS:
            raise InvariantViolated(f"{RATE}: starts at {earlier[-1]:g} and then until {self.now:g}")

    def expected_counts(self, claimed: ClaimedTask) -> tuple[int, int, int]:
        pk = claimed.id
        number = sum(claimed_pk == pk for claimed_pk, _ in self.records.claims)
        return number, self.attempts[pk], self.losses[pk]

    def check_limits(self) -> None:
        for queue, limit in self.limits.items():
            running = self.engine.db.tasks.running().filter(queue_name=queue).count()
            if running > limit + self.above_limit.get(queue, 0):
                raise InvariantViolated(f"{CLAIMED_RIGHT}: {running} tasks of queue {queue}, limited to {limit}")

    def poll_one(self, executor: SimulatedExecutor) -> None:
        executor.uncommitted.append(self.poll_task(executor, self.take_one(executor)))

    def take_one(self, executor: SimulatedExecutor) -> ClaimedTask:
        return executor.claimed.pop(self.random.randrange(len(executor.claimed)))

    def poll_task(self, executor: SimulatedExecutor, claimed: ClaimedTask) -> Outcome:
        if claimed.rate_key is not None:
            if self.now - self.claimed_at[claimed.id, claimed.claim_number] > TIMEOUT_SECONDS * LATEST_START_PART:
                self.note(f"{executor.name} releases {self.name(claimed.id)}, which it claimed long ago")
                return release_outcome(claimed)
            self.check_rate()
        messages = self.read(claimed.id)
        others = [pk for pk in self.names if pk != claimed.id]
        result = bodies.decide(self.random, claimed, messages, others, self.may_grow, executor.id)
        if spawned := result.effects.spawn:
            effects = dataclasses.replace(result.effects, spawn=[self.limited(child) for child in spawned])
            result = structs.replace(result, effects=effects)
        if claimed.rate_key is not None:
            result = structs.replace(result, begun_seconds=0.0)
            if self.random.random() < 0.3:  # as if the body ran for longer
                with self.not_waiting():
                    self.engine.admissions.count_starts([Start(claimed.id, claimed.claim_number, 0.0)])
        self.note(
            f"{executor.name} polls {self.name(claimed.id)}/{claimed.claim_number}: {self.describe_outcome(result)}"
        )
        return result

    @property
    def may_grow(self) -> bool:
        return len(self.queue_of) < MAX_TASKS

    def describe_outcome(self, result: Outcome) -> str:
        effects = result.effects
        parts = [
            str(result.status),
            f"takes {len(effects.consumed)}" if effects.consumed else "",
            f"leaves {len(effects.unread)}" if effects.unread else "",
            f"has {len(effects.spawn)} children" if effects.spawn else "",
            f"tells {', '.join(self.name(sent.task_id) for sent in effects.send)}" if effects.send else "",
            "ends its children" if effects.cancel_children else "",
        ]
        return ", ".join(filter(None, parts))

    def commit_all(self, executor: SimulatedExecutor) -> None:
        results, executor.uncommitted = executor.uncommitted, []
        self.note(f"{executor.name} commits {len(results)}")
        with self.not_waiting():
            answer = self.engine.commits.commit(results)
        executor.uncommitted += self.record_result(executor, results, answer)
        self.wake_or_die(executor, answer.wake)

    def commit_and_claim_some(self, executor: SimulatedExecutor) -> None:
        """Commit and claim in one transaction."""
        results, executor.uncommitted = executor.uncommitted, []
        request = self.request(executor)
        self.note(f"{executor.name} commits {len(results)} and claims")
        with self.not_waiting():
            answer, claims = self.engine.commit_and_claim(results, request, should_admit=self.has_limits)
        executor.uncommitted += self.record_result(executor, results, answer)
        self.record_claims(executor, request, claims)
        self.wake_or_die(executor, answer.wake)

    def wake_or_die(self, executor: SimulatedExecutor, ids: frozenset[object]) -> None:
        """Wake the receivers after a commit. Sometimes the executor dies before it does."""
        if ids and self.random.random() < 0.15:
            self.kill(executor)
        elif ids:
            self.wake([pk for pk in self.names if pk in ids])

    def kill(self, executor: SimulatedExecutor) -> None:
        """End an executor without a release or commit."""
        self.note(f"{executor.name} is killed")
        executor.is_dead = True
        for connection in self.open_transactions:
            if connection.owner is executor:
                self.note(f"  {connection.text} is rolled back")
                connection.roll_back()

    def release_and_stop(self, executor: SimulatedExecutor) -> None:
        """Stop gracefully: release the claimed tasks and commit the finished ones."""
        self.note(f"{executor.name} stops")
        results = [*executor.uncommitted, *(release_outcome(claimed) for claimed in executor.claimed)]
        executor.claimed, executor.uncommitted = [], []
        with self.not_waiting():
            answer = self.engine.commits.commit(results)
        self.record_result(executor, results, answer)  # outcomes with an unknown result are lost with the executor
        self.wake_or_die(executor, answer.wake)
        executor.is_dead = True

    def begin_function(self, executor: SimulatedExecutor, connection: SimulatedConnection) -> None:
        """Start a body in the commit's transaction, which locks the task and stays open."""
        claimed = self.take_one(executor)
        claim = (claimed.id, claimed.claim_number)
        connection.open(
            executor.name, f"{executor.name}'s function of {self.name(claimed.id)}", locks=True, owner=executor
        )
        self.note(f"{connection.text} begins")
        is_held = self.patiently(lambda: connection.engine.claims.lock_claim(claimed))
        if is_held is None:
            executor.claimed.append(claimed)
        elif not is_held and self.is_held(claim):
            raise InvariantViolated(f"{TAKEN_FOR_LOST}: {self.describe_claims([claim])} of {executor.name}")
        if not is_held:
            connection.roll_back()
            return
        result = self.poll_task(executor, claimed)
        connection.on_rollback = lambda: executor.uncommitted.append(result)
        connection.before_commit = lambda: self.end_function(executor, connection, result)

    def end_function(self, executor: SimulatedExecutor, connection: SimulatedConnection, result: Outcome) -> bool:
        """Commit the function. Return False if another transaction holds a required row: then roll back and retry."""
        answer = self.patiently(lambda: connection.engine.commits.commit([result], wait=True))
        if answer is None or not answer.done:
            return False

        def record() -> None:
            executor.uncommitted += self.record_result(executor, [result], answer)
            self.wake_or_die(executor, answer.wake)

        connection.on_commit = record
        return True

    # --- maintenance

    def admit_some(self, executor: SimulatedExecutor) -> None:
        with self.not_waiting():
            admitted = self.engine.admissions.admit()
        self.note(f"{executor.name} looks at {admitted.keys_seen} limits and admits {sum(admitted.queues.values())}")

    def rescue_some(self, executor: SimulatedExecutor) -> None:
        before = dict(self.records.claims)
        parents = self.parents()
        with self.not_waiting():
            rescued = self.engine.executors.rescue()
        self.note(f"{executor.name} rescues {', '.join(self.name(claim.id) for claim in rescued) or 'nothing'}")
        for task in rescued:
            claim = (task.id, before[task.id])
            holder = self.holders[claim]
            if (holder in self.awake and holder.is_steady) or self.now - holder.last_heartbeat < TIMEOUT_SECONDS:
                raise InvariantViolated(f"{STOLEN}: {self.describe_claims([claim])} from {holder.name}")
            expected = Status.READY if self.claim_details[claim].rate_key is None else Status.BLOCKED
            if task.id in self.cancel_requested:
                expected = Status.CANCELLED
            elif task.executor_losses >= OPTIONS.max_executor_losses:
                expected = Status.FAILED
            if task.status is not expected:
                raise InvariantViolated(f"{ANSWER}: {self.name(task.id)} was rescued as {task}, not {expected}")
            self._record_ending(claim, "rescued")
            self.cancel_requested.discard(task.id)
            self.losses[task.id] += 1
            self.count(task.id, lost=1, dead=task.status is Status.FAILED)
            if task.status in FINAL and self.open_transactions and (parent := parents[task.id]) is not None:
                self.records.pending_wakes.add(parent)
        if not self.open_transactions and len(rescued) < 100:
            self.check_rescued()

    def parents(self) -> dict[UUID, UUID | None]:
        return dict(self.engine.db.tasks.running().values_list("pk", "parent_id"))

    def check_rescued(self) -> None:
        """Check that no silent executor still owns a claim."""
        left = [
            claim
            for claim, holder in self.holders.items()
            if self.is_held(claim) and holder not in self.awake and self.now - holder.last_heartbeat > TIMEOUT_SECONDS
        ]
        if left:
            raise InvariantViolated(f"{ANSWER}: rescue left {self.describe_claims(left)} with dead executors")

    def sweep_all(self, executor: SimulatedExecutor) -> None:
        self.note(f"{executor.name} sweeps")
        tasks = self.engine.db.tasks
        unread = self.engine.db.messages.filter(consumed_at__isnull=True).values("task_id")
        without_messages = set(tasks.suspended().exclude(pk__in=unread).values_list("pk", flat=True))
        with self.not_waiting():
            self.engine.messages.sweep()
        if woken := set(tasks.ready().values_list("pk", flat=True)) & without_messages:
            raise InvariantViolated(f"{WOKEN}: {', '.join(sorted(map(self.name, woken)))} had none")
        if not self.open_transactions:
            asleep = tasks.suspended().filter(pk__in=unread, unread_polls=0).values_list("pk", flat=True)
            if asleep:
                raise InvariantViolated(f"{WOKEN}: {', '.join(sorted(map(self.name, asleep)))} sleep on")
            self.records.pending_wakes.clear()

    def wake_due(self, executor: SimulatedExecutor) -> None:
        self.note(f"{executor.name} wakes what is due")
        tasks = self.engine.db.tasks
        later = set(tasks.filter(wake_at__gt=clock_to_compare(after=TICK_SECONDS / 2)).values_list("pk", flat=True))
        with self.not_waiting():
            self.engine.inbox.wake_due()
        if early := set(tasks.ready().values_list("pk", flat=True)) & later:
            raise InvariantViolated(f"{EARLY}: {', '.join(sorted(map(self.name, early)))}")

    def prune_some(self, executor: SimulatedExecutor) -> None:
        with self.not_waiting():
            self.prune()
        self.note(f"{executor.name} prunes; {self.records.pruned} rows are gone")

    def aggregate_some(self, executor: SimulatedExecutor) -> None:
        self.note(f"{executor.name} aggregates the counters")
        with self.not_waiting():
            self.engine.counters.aggregate_counters(self.random.choice([5, 10_000]))

"""Claim tasks, and pass them to a pool or release them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from jobqueue.api.notifications import notifier
from jobqueue.declarations import registry
from jobqueue.declarations.actor import PolledTask
from jobqueue.engine import HEAD_TASKS, MESSAGES_PER_POLL
from jobqueue.executor.awaiting_code import AwaitingCode
from jobqueue.executor.budgets import Budgets
from jobqueue.executor.claim_policy import ClaimPolicy
from jobqueue.executor.isolation import Isolation
from jobqueue.executor.maintenance import Maintenance
from jobqueue.executor.pools.base import Pool
from jobqueue.executor.process_guard import this_process
from jobqueue.executor.running.attempt import CompletedAttempt, ExecutorIdentity, RunningTask
from jobqueue.executor.running.task_runner import (
    await_known,
    end_code_wait,
    missing_limits,
    release_for_later,
    release_unstarted,
)
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import NO_EFFECTS, ClaimedBatch, ClaimRequest, Outcome, StoredMessage
from jobqueue.values.states import FINAL, PoolName, Status

EVICT_SECONDS = 1.0  # a task that waited for a slot for so long is released, for other executors
VERBS = ("read_queues", "claim", "claim_isolated")  # calls without which there is nothing to do


class Claimer:
    """
    Claims tasks, and gives them to their pools. Belongs to the loop's thread.

    Methods that return completed attempts have found tasks that do not start here; the caller keeps their outcomes.

    It has more than 20 methods because a claimed task may also run alone, wait for code, be blocked, or be released.
    """

    def __init__(
        self,
        identity: ExecutorIdentity,
        policy: ClaimPolicy,
        pools: Mapping[PoolName, Pool],
        running_tasks: RunningTasks,
        maintenance: Maintenance,
        budgets: Budgets,
    ) -> None:
        self._identity, self._engine = identity, identity.engine
        self.policy, self._pools = policy, pools
        self._running_tasks, self._maintenance, self._budgets = running_tasks, maintenance, budgets
        self.number = 0  # of claimed tasks, without those that were released before they started
        self.isolation = Isolation(self._engine.options.heartbeat_timeout)
        self.awaiting_code = AwaitingCode(self._engine, identity, policy.serves, policy.queues)
        self._queues_with_work: set[str] = set()  # of which other executors are to be notified

    # --- what to claim

    def request(self, budget: int, *, with_commit: bool) -> ClaimRequest:
        """
        Return the request for a claim: empty for a while, if it cannot be decided. budget: how many tasks at most.
        """
        for queue in {*self.awaiting_code.fitting.values()}:
            self.policy.expect(queue)

        def request(_: int) -> ClaimRequest:
            return self.policy.request(budget, with_commit=with_commit)

        nothing = ClaimRequest(executor_id=self._identity.executor_id, queues=(), limit=0)
        return self._budgets.call("read_queues", request, nothing)

    def refresh(self) -> None:
        """Read the queues and limits that the last claim did not wait for."""
        self._budgets.call("read_queues", lambda _: self.policy.refresh(), None)

    def claim(self, request: ClaimRequest) -> ClaimedBatch:
        """Claim, and nothing else."""
        began_at, returning = time.monotonic(), [*self.awaiting_code.fitting]

        def claim(limit: int) -> ClaimedBatch:
            return self._engine.commit_and_claim([], replace(request, limit=limit), returning=returning)[1]

        claims = self._budgets.call("claim", claim, ClaimedBatch(), request.limit) if request.limit else ClaimedBatch()
        if returning:
            self._returned(request, claims)
        if not self._budgets.is_resting("claim"):  # otherwise it is due as before
            self.policy.claimed(request, claims, began_at)
        return claims

    def claimed(self, request: ClaimRequest, claims: ClaimedBatch, began_at: float) -> None:
        """Record the answer to a claim in the transaction of a commit."""
        if self.awaiting_code.fitting:
            self._returned(request, claims)
        self.policy.claimed(request, claims, began_at)

    def _returned(self, request: ClaimRequest, claims: ClaimedBatch) -> None:
        if request.limit:
            self.awaiting_code.returned(claims.returned, request.limit)
            self._maintenance.look_for_code_soon()

    def claim_isolated(self) -> ClaimedBatch:
        """Claim a task that has to run alone."""
        return self._budgets.call("claim_isolated", self._claim_isolated, ClaimedBatch())

    def _claim_isolated(self, _: int) -> ClaimedBatch:
        queues = self.policy.queues()
        limited = self.policy.limited(queues)
        request = ClaimRequest(executor_id=self._identity.executor_id, queues=queues, limit=1, limited=limited)
        claims = self._engine.claims.claim_isolated(request)
        self.isolation.claimed(bool(claims))
        return claims

    def look_for_isolated(self, *, is_idle: bool) -> None:
        """Look for tasks that have to run alone, if it is time."""
        if self.isolation.should_check(is_idle=is_idle):
            self.isolation.checked(
                self._maintenance.may_have_isolated
                and self._budgets.call(
                    "find_isolated", lambda _: self._engine.claims.has_isolated(self.policy.queues()), False
                )
            )

    @property
    def is_resting(self) -> bool:
        """Whether one of the calls in VERBS has failed, and is due again later."""
        return any(map(self._budgets.is_resting, VERBS))

    # --- where claimed tasks go

    def submit(self, claims: ClaimedBatch) -> list[CompletedAttempt]:
        """Give claimed tasks to their pools."""
        if not claims:
            return []
        failpoint("claim.after")
        claims, undecided = self._block_missing_limits(claims)
        declared = [registry.get(claimed.task_type) for claimed in claims]
        unstarted: list[CompletedAttempt] = []
        if not all(declared):
            unstarted += self._await_code(claims)
            claims = ClaimedBatch(claimed for claimed in claims if registry.get(claimed.task_type) is not None)
            declared = [registry.get(claimed.task_type) for claimed in claims]
        actors = [claimed.id for claimed, task in zip(claims, declared, strict=True) if isinstance(task, PolledTask)]
        # After the claim: a message that comes later makes the actor run again.
        messages = self._read_messages(actors) if actors else {}
        process = this_process()
        tasks = [RunningTask(claimed, self._identity, process=process) for claimed in claims]
        for running in tasks if messages else ():
            running.messages = messages.get(running.id, ())
        failpoint("begin")
        self._add(tasks)
        by_pool: dict[PoolName, list[RunningTask]] = defaultdict(list)
        for_later = {*actors} - messages.keys() | undecided
        for running, task in zip(tasks, declared, strict=True):
            assert task is not None
            if for_later and running.id in for_later:
                unstarted.append(release_for_later(running))
                continue
            # Tasks of SQL, or of code in which their function was another, may be stored with the wrong pool.
            by_pool[registry.pool_for(task.func)].append(running)
        for name, of_pool in by_pool.items():
            self._pools[name].submit(of_pool)
        for name, of_pool in by_pool.items():
            if misplaced := [task.id for task in of_pool if task.claimed.pool != name]:
                self._budgets.call("move_to_pool", partial(self._move_to_pool, misplaced, name), None)
        return unstarted

    def _add(self, tasks: Sequence[RunningTask]) -> None:
        self.number += len(tasks)
        self._running_tasks.add(tasks)

    def _await_code(self, claims: ClaimedBatch) -> list[CompletedAttempt]:
        """Make claimed tasks for which this process has no code AWAITING_CODE. They need no slot."""
        unknown = [claimed for claimed in claims if registry.get(claimed.task_type) is None]
        tasks = [RunningTask(claimed, self._identity) for claimed in unknown]
        self._add(tasks)
        return [await_known(task) for task in tasks]

    def end_code_waits(self) -> list[CompletedAttempt]:
        """Fail tasks that have waited for code for as long as they may."""
        tasks = [
            RunningTask(claimed, self._identity)
            for claimed in self._engine.code_waits.claim_ended(self._identity.executor_id)
        ]
        self._add(tasks)
        return [end_code_wait(task) for task in tasks]

    def park(self) -> None:
        """Move tasks without code here out of the way of the next claims."""
        if self.awaiting_code.is_parking:
            self._budgets.call("park", self.awaiting_code.park, None, HEAD_TASKS)
        self.awaiting_code.log()

    @property
    def should_park(self) -> bool:
        return self.awaiting_code.is_parking and not self._budgets.is_resting("park")

    def _move_to_pool(self, ids: Sequence[UUID], name: PoolName, _: int) -> None:
        self._engine.claims.move_to_pool(ids, name)

    def _read_messages(self, actors: Sequence[UUID]) -> Mapping[UUID, Sequence[StoredMessage]]:
        """
        Return the unread messages of actors. Those that cannot be read are missing.

        After a call that took too long, each actor is asked alone, and for fewer messages. After another such call, the
        next turns ask for the others, so that one turn does not take long.
        """
        read = partial(self._engine.messages.read_messages, actors)
        of_all = self._budgets.call("read_messages", read, None, MESSAGES_PER_POLL)
        if of_all is not None:
            return {pk: of_all.get(pk, ()) for pk in actors}
        messages: dict[UUID, Sequence[StoredMessage]] = {}
        for pk in actors:
            read = partial(self._engine.messages.read_messages, [pk])
            of_actor = self._budgets.call(f"read_messages {pk}", read, None, MESSAGES_PER_POLL)
            if of_actor is None:
                break
            messages[pk] = of_actor.get(pk, ())
        return messages

    def _block_missing_limits(self, claims: ClaimedBatch) -> tuple[ClaimedBatch, set[UUID]]:
        """
        Give tasks of SQL, and of code without limits, the limits that their code declares now.

        Return the other tasks, and among these the ones that got no limits because the database did not answer in time.
        """
        if not (missing := missing_limits(claims)):
            return claims, set()
        limited = {claimed.id for claimed, _ in missing}
        blocked = self._budgets.call("apply_limits", lambda _: self._engine.admissions.impose_limits(missing), None)
        if blocked is None:
            return claims, limited
        if len(blocked) < len(missing):  # other sessions have locked them: release them, none may run without limits
            self._maintenance.expect_unknown_claims()
        self._maintenance.admit_soon()
        return ClaimedBatch(claimed for claimed in claims if claimed.id not in limited), set()

    def evict_waiting(self, *, is_stopping: bool) -> list[CompletedAttempt]:
        """Release tasks that wait too long for a slot, and all of them for a stop or an isolated task."""
        seconds = 0.0 if is_stopping or self.isolation.is_waiting else EVICT_SECONDS
        return [release_unstarted(task) for pool in self._pools.values() for task in pool.evict(seconds)]

    # --- what other executors should claim

    def ended(self, completed: CompletedAttempt, status: Status | None) -> None:
        """Note that a task has left this process. status: the state it entered; None if its claim was lost."""
        claimed, outcome = completed.running.claimed, completed.outcome
        if self.isolation.is_running:
            self.isolation.ended()
        self.policy.ended([claimed.queue_name])
        if status is None:
            return
        if completed.running.started_at is None and status not in FINAL:
            self.number -= 1
        if status is Status.AWAITING_CODE:
            self.awaiting_code.parked(claimed, completed.error)
        if has_made_ready(outcome, status):
            self._queues_with_work |= {child.queue_name for child in outcome.effects.spawn}
            self.policy.claim_soon()

    def succeeded(self, ended: Sequence[CompletedAttempt]) -> None:
        """Act on the ends of tasks that were SUCCESSFUL and changed nothing else."""
        if ended and self.isolation.is_running:
            self.isolation.ended()
        self.policy.ended(completed.running.claimed.queue_name for completed in ended)

    def admitted(self, queues: Mapping[str, int], *, can_claim: bool) -> None:
        """Notify other executors of admitted tasks that this one cannot claim at once. queues: their numbers."""
        free = sum(max(0, pool.free_slots()) for pool in self._pools.values()) if can_claim else 0
        self._queues_with_work |= {
            queue for queue, count in queues.items() if count > free or not self.policy.serves(queue)
        }

    def notify_others(self, request: ClaimRequest, claims: ClaimedBatch) -> None:
        self._queues_with_work |= self.policy.queues_below_limit(request, claims)
        if claims.admitted is not None:
            claimed = Counter(task.queue_name for task in claims)
            admitted = claims.admitted.queues
            self._queues_with_work |= {name for name, count in admitted.items() if count > claimed[name]}
        if self._queues_with_work and self._engine.options.notify:
            queues, self._queues_with_work = self._queues_with_work, set()
            self._budgets.call("notify", lambda _: notifier.send(self._engine, queues), None)


def has_made_ready(outcome: Outcome, status: Status) -> bool:
    """Return whether a commit made tasks READY, its own or others."""
    has_notified_parent = outcome.parent_id is not None and status in FINAL
    is_ready_itself = outcome.has_succeeded and status is Status.READY
    return has_notified_parent or outcome.effects is not NO_EFFECTS or is_ready_itself

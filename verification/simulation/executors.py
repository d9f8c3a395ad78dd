"""What executors do: each move is a verb of the engine, or two that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from jobqueue.engine.clock import bound
from jobqueue.records import FINAL, ClaimedTask, ClaimRequest, Outcome, Status, released
from verification.simulation import bodies
from verification.simulation.actors import Member, Session
from verification.simulation.stage import (
    ANSWER,
    CLAIMED_RIGHT,
    COUNTED,
    EARLY,
    OPTIONS,
    STOLEN,
    TAKEN_FOR_LOST,
    TICK_SECONDS,
    TIMEOUT_SECONDS,
    WOKEN,
    Stage,
    Wrong,
)

SLOTS = 4
ISOLATION_LOSSES = 2
MOST_BORN = 20


class Executors(Stage):
    def claim_some(self, member: Member) -> None:
        demand = self.demand(member)
        is_idle = not member.hands and not member.pending
        is_isolated = is_idle and self.chance.random() < 0.3
        with self.not_waiting():
            claims = self.engine.claim_isolated(demand) if is_isolated else self.engine.claim(demand)
        self.take_claims(member, demand, claims, is_isolated=is_isolated)

    def demand(self, member: Member) -> ClaimRequest:
        queues = [name for name in bodies.QUEUES if self.chance.random() < 0.8] or list(bodies.QUEUES)
        return ClaimRequest(
            executor_id=member.id,
            queues=queues,
            limit=self.chance.randint(1, SLOTS - 1),
            limited=sorted(self.limits),
        )

    def take_claims(
        self, member: Member, demand: ClaimRequest, claims: Sequence[ClaimedTask], *, is_isolated: bool = False
    ) -> None:
        self.note(f"{member.name} claims {', '.join(self.name(one.id) for one in claims) or 'nothing'}")
        for one in claims:
            claim = (one.id, one.claim_number)
            self.ledger.claims.append(claim)
            self.holders[claim], self.claimed[claim] = member, one
            is_allowed = one.queue_name in demand.queues and one.queue_name not in self.paused
            if not is_allowed or one.id in self.asked or (one.executor_losses >= ISOLATION_LOSSES) != is_isolated:
                raise Wrong(f"{CLAIMED_RIGHT}: {self.name(one.id)}, {one}, by {demand}, paused {self.paused}")
            was, right = (one.claim_number, one.attempts, one.executor_losses), self.right_counts(one)
            if was != right:
                raise Wrong(f"{COUNTED}: {self.name(one.id)} has {was} claims, attempts and losses, which were {right}")
        if len(claims) > demand.limit:
            raise Wrong(f"{CLAIMED_RIGHT}: {len(claims)} tasks by {demand}")
        # A task of which it had an older claim, when it was frozen say, is now this one to it.
        ids = {one.id for one in claims}
        member.pending = [result for result in member.pending if result.task_id not in ids]
        member.hands = [one for one in member.hands if one.id not in ids] + list(claims)
        self.see_limits()

    def right_counts(self, claimed: ClaimedTask) -> tuple[int, int, int]:
        pk = claimed.id
        number = sum(one == pk for one, _ in self.ledger.claims)
        return number, self.attempts[pk], self.losses[pk]

    def see_limits(self) -> None:
        for queue, most in self.limits.items():
            running = self.engine.tasks.running().filter(queue_name=queue).count()
            if running > most + self.over.get(queue, 0):
                raise Wrong(f"{CLAIMED_RIGHT}: {running} tasks of queue {queue}, which has {most}")

    def poll_one(self, member: Member) -> None:
        member.pending.append(self.poll_task(member, self.take_one(member)))

    def take_one(self, member: Member) -> ClaimedTask:
        return member.hands.pop(self.chance.randrange(len(member.hands)))

    def poll_task(self, member: Member, claimed: ClaimedTask) -> Outcome:
        mail = self.read(claimed.id)
        others = [pk for pk in self.names if pk != claimed.id]
        result = bodies.decide(self.chance, claimed, mail, others, self.may_grow, member.id)
        self.note(f"{member.name} polls {self.name(claimed.id)}/{claimed.claim_number}: {self.told_outcome(result)}")
        return result

    @property
    def may_grow(self) -> bool:
        return len(self.queue_of) < MOST_BORN

    def told_outcome(self, result: Outcome) -> str:
        effects = result.effects
        parts = [
            str(result.status),
            f"takes {len(effects.consumed)}" if effects.consumed else "",
            f"leaves {len(effects.left)}" if effects.left else "",
            f"has {len(effects.spawn)} children" if effects.spawn else "",
            f"tells {', '.join(self.name(one.task_id) for one in effects.send)}" if effects.send else "",
            "ends its children" if effects.cancel_children else "",
        ]
        return ", ".join(filter(None, parts))

    def commit_all(self, member: Member) -> None:
        results, member.pending = member.pending, []
        self.note(f"{member.name} commits {len(results)}")
        with self.not_waiting():
            answer = self.engine.commit(results)
        member.pending += self.take_answer(member, results, answer)
        self.wake_or_die(member, answer.wake)

    def pulse_all(self, member: Member) -> None:
        """Commit and claim in one transaction."""
        results, member.pending = member.pending, []
        demand = self.demand(member)
        self.note(f"{member.name} commits {len(results)} and claims")
        with self.not_waiting():
            answer, claims = self.engine.commit_and_claim(results, demand)
        member.pending += self.take_answer(member, results, answer)
        self.take_claims(member, demand, claims)
        self.wake_or_die(member, answer.wake)

    def wake_or_die(self, member: Member, ids: frozenset[object]) -> None:
        """After its commit, before the wake-up that should follow, an executor may die."""
        if ids and self.chance.random() < 0.15:
            self.kill(member)
        elif ids:
            self.wake([pk for pk in self.names if pk in ids])

    def kill(self, member: Member) -> None:
        """It is gone without a word, whatever it was about."""
        self.note(f"{member.name} is killed")
        member.is_dead = True
        for side in self.open_sides:
            if side.owner is member:
                self.note(f"  {side.text} is rolled back")
                side.roll_back()

    def go_home(self, member: Member) -> None:
        """A graceful stop: what it holds goes back, and what it has finished is committed."""
        self.note(f"{member.name} stops")
        results = [*member.pending, *(released(claimed) for claimed in member.hands)]
        member.hands, member.pending = [], []
        with self.not_waiting():
            answer = self.engine.commit(results)
        self.take_answer(member, results, answer)  # what is left would be committed later: here it is lost with it
        self.wake_or_die(member, answer.wake)
        member.is_dead = True

    def begin_function(self, member: Member, side: Session) -> None:
        """A body in the committing transaction, which holds its row and goes on for a while."""
        claimed = self.take_one(member)
        claim = (claimed.id, claimed.claim_number)
        side.open(member.name, f"{member.name}'s function of {self.name(claimed.id)}", locks=True, owner=member)
        self.note(f"{side.text} begins")
        is_held = self.patiently(lambda: side.engine.lock_claim(claimed))
        if is_held is None:
            member.hands.append(claimed)
        elif not is_held and self.is_held(claim):
            raise Wrong(f"{TAKEN_FOR_LOST}: {self.told([claim])} of {member.name}")
        if not is_held:
            side.roll_back()
            return
        result = self.poll_task(member, claimed)
        side.on_rollback = lambda: member.pending.append(result)
        side.before_commit = lambda: self.end_function(member, side, result)

    def end_function(self, member: Member, side: Session, result: Outcome) -> bool:
        """Whether it could commit; where a row is held that it cannot do without, all is undone and begins again."""
        answer = self.patiently(lambda: side.engine.commit([result], wait=True))
        if answer is None or not answer.done:
            return False

        def told() -> None:
            member.pending += self.take_answer(member, [result], answer)
            self.wake_or_die(member, answer.wake)

        side.on_commit = told
        return True

    # --- upkeep

    def rescue_some(self, member: Member) -> None:
        before = dict(self.ledger.claims)
        parents = self.parents()
        with self.not_waiting():
            rescued = self.engine.rescue()
        self.note(f"{member.name} rescues {', '.join(self.name(one.id) for one in rescued) or 'nothing'}")
        for one in rescued:
            claim = (one.id, before[one.id])
            holder = self.holders[claim]
            if (holder in self.awake and holder.is_steady) or self.now - holder.beat_at < TIMEOUT_SECONDS:
                raise Wrong(f"{STOLEN}: {self.told([claim])} from {holder.name}")
            right = Status.CANCELLED if one.id in self.asked else Status.READY
            if one.executor_losses >= OPTIONS.max_executor_losses and right is Status.READY:
                right = Status.FAILED
            if one.status is not right:
                raise Wrong(f"{ANSWER}: {self.name(one.id)} was rescued as {one}, not {right}")
            self._note_ending(claim, "rescued")
            self.asked.discard(one.id)
            self.losses[one.id] += 1
            self.count(one.id, lost=1, dead=one.status is Status.FAILED)
            if one.status in FINAL and self.open_sides and (parent := parents[one.id]) is not None:
                self.ledger.owed.add(parent)
        if not self.open_sides and len(rescued) < 100:
            self.see_rescued()

    def parents(self) -> dict[UUID, UUID | None]:
        return dict(self.engine.tasks.running().values_list("pk", "parent_id"))

    def see_rescued(self) -> None:
        """What the silent held is held no more."""
        left = [
            claim
            for claim, holder in self.holders.items()
            if self.is_held(claim) and holder not in self.awake and self.now - holder.beat_at > TIMEOUT_SECONDS
        ]
        if left:
            raise Wrong(f"{ANSWER}: rescue left {self.told(left)} with the dead")

    def sweep_all(self, member: Member) -> None:
        self.note(f"{member.name} sweeps")
        tasks = self.engine.tasks
        unread = self.engine.messages.filter(consumed_at__isnull=True).values("task_id")
        without_mail = set(tasks.suspended().exclude(pk__in=unread).values_list("pk", flat=True))
        with self.not_waiting():
            self.engine.sweep()
        if woken := set(tasks.ready().values_list("pk", flat=True)) & without_mail:
            raise Wrong(f"{WOKEN}: {', '.join(sorted(map(self.name, woken)))} had none")
        if not self.open_sides:
            asleep = tasks.suspended().filter(pk__in=unread, unread_polls=0).values_list("pk", flat=True)
            if asleep:
                raise Wrong(f"{WOKEN}: {', '.join(sorted(map(self.name, asleep)))} sleep on")
            self.ledger.owed.clear()

    def ring(self, member: Member) -> None:
        self.note(f"{member.name} wakes what is due")
        tasks = self.engine.tasks
        later = set(tasks.filter(wake_at__gt=bound(TICK_SECONDS / 2)).values_list("pk", flat=True))
        with self.not_waiting():
            self.engine.wake_due()
        if early := set(tasks.ready().values_list("pk", flat=True)) & later:
            raise Wrong(f"{EARLY}: {', '.join(sorted(map(self.name, early)))}")

    def prune_some(self, member: Member) -> None:
        with self.not_waiting():
            self.prune()
        self.note(f"{member.name} prunes; {self.ledger.pruned} are gone")

    def fold_some(self, member: Member) -> None:
        self.note(f"{member.name} folds the tally")
        with self.not_waiting():
            self.engine.aggregate_counters(self.chance.choice([5, 10_000]))

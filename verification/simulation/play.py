"""One play: executors, senders, admins and accidents take turns, as a seed decides, until all comes to rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from jobqueue.models import Queue
from jobqueue.records import LIVE, ClaimRequest, Status
from verification.simulation import bodies
from verification.simulation.actors import Member, Session
from verification.simulation.executors import SLOTS, Executors
from verification.simulation.judge import problems
from verification.simulation.people import People
from verification.simulation.stage import TICK_SECONDS, Wrong

Move = Callable[[], None]

MEMBERS = 3
MOST_MEMBERS = 9  # in one play, one after the other
LOOK_EVERY = 20  # moves
MOST_ROUNDS = 30
REST = "all comes to rest"


class Play(Executors, People):
    def run(self, moves: int) -> list[str]:
        """Give what does not hold; nothing, if all is well."""
        try:
            self._begin()
            for number in range(1, moves + 1):
                self._move()
                if number % LOOK_EVERY == 0 and (found := list(problems(self))):
                    return found
            self._come_to_rest()
            return list(problems(self, is_over=True))
        except Wrong as error:
            return [str(error)]
        finally:
            for side in self.open_sides:
                side.roll_back()

    def _begin(self) -> None:
        for _ in range(MEMBERS):
            self.new_member()
        for _ in range(4):
            self.do(self.enqueue_one)

    def _move(self) -> None:
        moves = self._moves()
        (move,) = self.chance.choices([move for move, _ in moves], [weight for _, weight in moves])
        move()

    def _moves(self) -> list[tuple[Move, float]]:
        """What may come next, and how likely each is."""
        moves: list[tuple[Move, float]] = [(self._tick, 4)] if not any(side.locks for side in self.open_sides) else []
        moves += [(partial(self._end, side), 4) for side in self.open_sides]
        moves += [(partial(self._long, side), 3) for side in self.sides if not side.is_open]
        moves += [(partial(self.do, move), weight) for move, weight in self._of_people()]
        moves += [(partial(self._act, move, member), w) for member in self.awake for move, w in self._of(member)]
        moves += [(partial(self._thaw, member), 2) for member in self.members if member.is_frozen]
        if len(self.awake) < MEMBERS and len(self.members) < MOST_MEMBERS:
            moves.append((self._start, 6))
        return moves

    def _of_people(self) -> list[tuple[Callable[..., Callable[[], None]], float]]:
        growing = [(self.enqueue_one, 3)] if self.may_grow else []
        return [
            *growing,
            (self.send_one, 3.5),
            (self.cancel_one, 1.5),
            (self.requeue_one, 1.5),
            (self.wake_now, 0.5),
            (self.pause_one, 0.4),
            (self.limit_one, 0.4),
        ]

    def _of(self, member: Member) -> list[tuple[Callable[[Member], None], float]]:
        has_room = len(member.hands) + len(member.pending) < SLOTS
        upkeep: list[tuple[Callable[[Member], None], float]] = [
            (self.rescue_some, 0.8),
            (self.sweep_all, 0.4),
            (self.ring, 1.0),
            (self.prune_some, 0.3),
            (self.fold_some, 0.2),
            (self.beat, 0.4),
            (self._die, 0.8 if member.hands or member.pending else 0.2),
            (self._freeze, 1.2 if member.hands or member.pending else 0.2),
        ]
        return [
            *upkeep,
            *([(self.claim_some, 2.0 if member.hands else 5.0)] if has_room else []),
            *([(self.poll_one, 5.0)] if member.hands else []),
            *([(self.commit_all, 3.0)] if member.pending else []),
            *([(self.pulse_all, 1.5)] if member.pending and has_room else []),
            *([(self.go_home, 0.3)] if member.hands else []),
        ]

    def _act(self, move: Callable[[Member], None], member: Member) -> None:
        self.session.call_itself(member.name)
        move(member)

    # --- accidents

    def _tick(self) -> None:
        self.advance(TICK_SECONDS)

    def _start(self) -> None:
        self.note(f"{self.new_member().name} starts")

    def _freeze(self, member: Member) -> None:
        if not any(side.owner is member for side in self.open_sides):
            self.note(f"{member.name} is frozen")
            member.is_frozen = True
            self._find_out()

    def _die(self, member: Member) -> None:
        self.kill(member)
        self._find_out()

    def _find_out(self) -> None:
        """Half of the time others go on, until they rescue what it held."""
        if self.chance.random() < 0.5 and self.awake and not any(side.locks for side in self.open_sides):
            self.advance(3 * TICK_SECONDS)
            self._act(self.rescue_some, self.chance.choice(self.awake))

    def _thaw(self, member: Member) -> None:
        """It goes on where it was, as if nothing had happened."""
        self.note(f"{member.name} goes on")
        member.is_frozen, member.is_steady = False, False
        self.session.call_itself(member.name)
        if member.pending and self.chance.random() < 0.7:
            self.commit_all(member)
        if not member.is_dead:
            self.beat(member)

    def _long(self, side: Session) -> None:
        """Somebody leaves a transaction open."""
        busy = [member for member in self.awake if member.hands]
        if busy and self.chance.random() < 0.4:
            self.begin_function(self.chance.choice(busy), side)
            return
        moves = [(self.send_one, 5, False), (self.enqueue_one, 2, False), (self.cancel_one, 2, True)]
        moves.append((self.requeue_one, 2, True))
        ((move, _, locks),) = self.chance.choices(moves, [weight for _, weight, _ in moves])
        self.leave_open(side, move, locks=locks)

    def _end(self, side: Session) -> None:
        is_good = self.chance.random() < 0.75
        self.note(f"{side.text} {'commits' if is_good else 'is rolled back'}")
        if is_good:
            side.commit()
        else:
            side.roll_back()

    # --- the end

    def _come_to_rest(self) -> None:
        """Who lives does what is left to do; sleepers are told to end. Then all have ended, or somebody is stuck."""
        self.note("--- all come to rest")
        for side in self.open_sides:
            self._end(side)
        member = next(iter(self.awake), None) or self.new_member()
        status = self.status()
        for pk in [pk for pk in self.names if status.get(pk) == Status.FAILED]:
            self.do(partial(self.requeue_this, pk=pk))
        self._claim_within_limits(member)
        Queue.objects.filter(backend=self.engine.alias).delete()
        self.paused, self.limits = set(), {}
        for _ in range(MOST_ROUNDS):
            self._round(member)
            status = self.status()
            living = [pk for pk in self.names if status.get(pk) in LIVE]
            if not living:
                return
            if all(status[pk] == Status.SUSPENDED for pk in living):
                if found := list(problems(self)):  # as long as parents wait for what they should have been told
                    raise Wrong("; ".join(found))
                self._tell(living)
        raise Wrong(f"{REST}: {', '.join(f'{self.name(pk)} is {status[pk]}' for pk in living)} for ever")

    def _claim_within_limits(self, member: Member) -> None:
        """Of each queue one may run, or what runs: as much as there is, and no more."""
        for name in bodies.QUEUES:
            self.set_limit(name, 1)
        self.session.call_itself(member.name)
        demand = ClaimRequest(executor_id=member.id, queues=bodies.QUEUES, limit=100, limited=sorted(self.limits))
        self.take_claims(member, demand, self.engine.claim(demand))

    def _round(self, member: Member) -> None:
        self.session.call_itself(member.name)
        self.rescue_some(member)
        self.sweep_all(member)
        self.ring(member)
        demand = ClaimRequest(executor_id=member.id, queues=bodies.QUEUES, limit=100)
        self.take_claims(member, demand, self.engine.claim(demand))
        while claims := self.engine.claim_isolated(demand):
            self.take_claims(member, demand, claims, is_isolated=True)
        for one in [one for one in self.awake if one.hands or one.pending]:
            self.session.call_itself(one.name)
            one.pending += [bodies.last(claimed, self.read(claimed.id), one.id) for claimed in one.hands]
            one.hands = []
            results, one.pending = one.pending, []
            answer = self.engine.commit(results)
            one.pending = self.take_answer(one, results, answer)
            self.wake([pk for pk in self.names if pk in answer.wake])
        self.advance(7 * TICK_SECONDS)

    def _tell(self, sleepers: Sequence[UUID]) -> None:
        self.session.call_itself("people")
        for number, pk in enumerate(sleepers):
            self.sent += 1
            self.engine.send([bodies.message(pk, f"end-{self.sent}")])
            if number:
                self.engine.wake([pk])
            else:
                self.note(f"a sender tells {self.name(pk)} to end, and dies: that is left to the sweep")

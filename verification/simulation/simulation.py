"""One simulation: executors, users and accidents make random moves, chosen by a seed, until every task has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from jobqueue.models import Queue
from jobqueue.values.records import ClaimRequest
from jobqueue.values.states import LIVE, Status
from verification.simulation import bodies
from verification.simulation.checks import problems
from verification.simulation.executor_moves import SLOTS, ExecutorMoves
from verification.simulation.participants import SimulatedConnection, SimulatedExecutor
from verification.simulation.simulated_backend import REST, TICK_SECONDS, InvariantViolated
from verification.simulation.user_moves import UserMoves

Move = Callable[[], None]

EXECUTORS = 3
MAX_EXECUTORS = 9  # of one simulation, in total
CHECK_EVERY = 20  # moves
MAX_ROUNDS = 30


class Simulation(ExecutorMoves, UserMoves):
    """Random moves on one backend. The seed decides all of them."""

    def run(self, moves: int) -> list[str]:
        """Run the simulation. Return the violated invariants."""
        try:
            self._begin()
            for number in range(1, moves + 1):
                self._move()
                if number % CHECK_EVERY == 0 and (broken := list(problems(self))):
                    return broken
            self._come_to_rest()
            return list(problems(self, is_over=True))
        except InvariantViolated as error:
            return [str(error)]
        finally:
            for connection in self.open_transactions:
                connection.roll_back()

    def _begin(self) -> None:
        for _ in range(EXECUTORS):
            self.start_executor()
        for _ in range(4):
            self.do(self.enqueue_one)

    def _move(self) -> None:
        moves = self._moves()
        (move,) = self.random.choices([move for move, _ in moves], [weight for _, weight in moves])
        move()

    def _moves(self) -> list[tuple[Move, float]]:
        """Return the possible next moves with their weights."""
        moves: list[tuple[Move, float]] = [] if self.rows_are_locked else [(self._tick, 4)]
        if self.has_limits and not self.rows_are_locked:
            moves.append((self._step_clock, 0.3))
        moves += [(partial(self._end, connection), 4) for connection in self.open_transactions]
        moves += [
            (partial(self._begin_long_transaction, connection), 3)
            for connection in self.other_connections
            if not connection.is_open
        ]
        moves += [(partial(self.do, move), weight) for move, weight in self._user_moves()]
        moves += [
            (partial(self._act, move, executor), w)
            for executor in self.awake
            for move, w in self._executor_moves(executor)
        ]
        moves += [(partial(self._thaw, executor), 2) for executor in self.executors if executor.is_frozen]
        if len(self.awake) < EXECUTORS and len(self.executors) < MAX_EXECUTORS:
            moves.append((self._start, 6))
        return moves

    def _user_moves(self) -> list[tuple[Callable[..., Callable[[], None]], float]]:
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

    def _executor_moves(self, executor: SimulatedExecutor) -> list[tuple[Callable[[SimulatedExecutor], None], float]]:
        has_room = len(executor.claimed) + len(executor.uncommitted) < SLOTS
        maintenance: list[tuple[Callable[[SimulatedExecutor], None], float]] = [
            (self.rescue_some, 0.8),
            (self.sweep_all, 0.4),
            (self.wake_due, 1.0),
            (self.prune_some, 0.3),
            (self.aggregate_some, 0.2),
            (self.heartbeat, 0.4),
            *([(self.admit_some, 3.0)] if self.has_limits else []),
            (self._die, 0.8 if executor.claimed or executor.uncommitted else 0.2),
            (self._freeze, 1.2 if executor.claimed or executor.uncommitted else 0.2),
        ]
        return [
            *maintenance,
            *([(self.claim_some, 2.0 if executor.claimed else 5.0)] if has_room else []),
            *([(self.poll_one, 5.0)] if executor.claimed else []),
            *([(self.commit_all, 3.0)] if executor.uncommitted else []),
            *([(self.commit_and_claim_some, 1.5)] if executor.uncommitted and has_room else []),
            *([(self.release_and_stop, 0.3)] if executor.claimed else []),
        ]

    def _act(self, move: Callable[[SimulatedExecutor], None], executor: SimulatedExecutor) -> None:
        self.session.set_application_name(executor.name)
        move(executor)

    # --- accidents

    def _tick(self) -> None:
        self.advance(TICK_SECONDS)

    def _step_clock(self) -> None:
        """Let the clock of the server jump."""
        self.advance(37 * TICK_SECONDS)

    def _start(self) -> None:
        self.note(f"{self.start_executor().name} starts")

    def _freeze(self, executor: SimulatedExecutor) -> None:
        if not any(connection.owner is executor for connection in self.open_transactions):
            self.note(f"{executor.name} is frozen")
            executor.is_frozen = True
            self._find_out()

    def _die(self, executor: SimulatedExecutor) -> None:
        self.kill(executor)
        self._find_out()

    def _find_out(self) -> None:
        """Half of the time, let the others rescue the executor's tasks at once."""
        if self.random.random() < 0.5 and self.awake and not self.rows_are_locked:
            self.advance(3 * TICK_SECONDS)
            self._act(self.rescue_some, self.random.choice(self.awake))

    def _thaw(self, executor: SimulatedExecutor) -> None:
        """Let a frozen executor continue as if no time had passed."""
        self.note(f"{executor.name} goes on")
        executor.is_frozen, executor.is_steady = False, False
        self.session.set_application_name(executor.name)
        if executor.uncommitted and self.random.random() < 0.7:
            self.commit_all(executor)
        if not executor.is_dead:
            self.heartbeat(executor)

    def _begin_long_transaction(self, connection: SimulatedConnection) -> None:
        """Leave a transaction open."""
        busy = [executor for executor in self.awake if executor.claimed]
        if busy and self.random.random() < 0.4:
            self.begin_function(self.random.choice(busy), connection)
            return
        moves = [(self.send_one, 5, False), (self.enqueue_one, 2, False), (self.cancel_one, 2, True)]
        moves.append((self.requeue_one, 2, True))
        ((move, _, locks),) = self.random.choices(moves, [weight for _, weight, _ in moves])
        self.leave_open(connection, move, locks=locks)

    def _end(self, connection: SimulatedConnection) -> None:
        is_good = self.random.random() < 0.75
        self.note(f"{connection.text} {'commits' if is_good else 'is rolled back'}")
        if is_good:
            connection.commit()
        else:
            connection.roll_back()

    # --- the end

    def _come_to_rest(self) -> None:
        """Let the live executors finish all tasks and end the suspended ones. Then every task must have ended."""
        self.note("--- the end: all tasks finish")
        for connection in self.open_transactions:
            self._end(connection)
        executor = next(iter(self.awake), None) or self.start_executor()
        status = self.status()
        for pk in [pk for pk in self.names if status.get(pk) == Status.FAILED]:
            self.do(partial(self.requeue_this, pk=pk))
        self._claim_within_limits(executor)
        Queue.objects.filter(backend=self.engine.alias).delete()
        self.paused, self.limits = set(), {}
        for _ in range(MAX_ROUNDS):
            self._round(executor)
            status = self.status()
            live = [pk for pk in self.names if status.get(pk) in LIVE]
            if not live:
                return
            if all(status[pk] == Status.SUSPENDED for pk in live):
                if broken := list(problems(self)):  # a parent that missed a report would still be suspended
                    raise InvariantViolated("; ".join(broken))
                self._send_end(live)
        raise InvariantViolated(f"{REST}: {', '.join(f'{self.name(pk)} is {status[pk]}' for pk in live)} at the end")

    def _claim_within_limits(self, executor: SimulatedExecutor) -> None:
        """Limit each queue to one running task and claim everything. Only that many tasks may start."""
        for name in bodies.QUEUES:
            self.set_limit(name, 1)
        self.session.set_application_name(executor.name)
        request = ClaimRequest(executor_id=executor.id, queues=bodies.QUEUES, limit=100, limited=sorted(self.limits))
        self.record_claims(executor, request, self.engine.claims.claim(request))

    def _round(self, executor: SimulatedExecutor) -> None:
        self.session.set_application_name(executor.name)
        self.rescue_some(executor)
        self.sweep_all(executor)
        self.wake_due(executor)
        if self.has_limits:
            self.admit_some(executor)
        request = ClaimRequest(executor_id=executor.id, queues=bodies.QUEUES, limit=100)
        self.record_claims(executor, request, self.engine.claims.claim(request))
        while claims := self.engine.claims.claim_isolated(request):
            self.record_claims(executor, request, claims, is_isolated=True)
        for other in [executor for executor in self.awake if executor.claimed or executor.uncommitted]:
            self.session.set_application_name(other.name)
            other.uncommitted += [bodies.finish(claimed, self.read(claimed.id), other.id) for claimed in other.claimed]
            other.claimed = []
            results, other.uncommitted = other.uncommitted, []
            answer = self.engine.commits.commit(results)
            other.uncommitted = self.record_result(other, results, answer)
            self.wake([pk for pk in self.names if pk in answer.wake])
        self.advance(7 * TICK_SECONDS)

    def _send_end(self, sleepers: Sequence[UUID]) -> None:
        self.session.set_application_name("users")
        for number, pk in enumerate(sleepers):
            self.sent += 1
            self.engine.messages.send([bodies.new_message(pk, f"end-{self.sent}")])
            if number:
                self.engine.messages.wake([pk])
            else:
                self.note(f"a sender sends the end to {self.name(pk)} and dies: the sweep wakes it")

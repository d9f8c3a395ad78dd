"""A storm: faults in a random order, one after the other, upon executors at work."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from jobqueue.conf import Options
from verification.faults import strikes
from verification.faults.checker import Violation, restarts, violations
from verification.faults.proxy import Where
from verification.faults.rig import Member, Rig

STRENGTH = 5  # executors at work
BEHIND_PROXY = 0.4  # of them
AWAY_SECONDS = (1.0, 4.5)
CUT_SECONDS = (1.0, 3.0)
# Of senders: about half of the slots have work. Where all have, what was rescued waits for one to be free.
PAUSE_SECONDS = 0.6
FIRST = {"hold_transaction", "outage"}  # the others fall into its time, or upon those who lived through it
POISON = "verification.faults.bodies.poison"
Fault = Callable[["Storm"], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How many of which faults, and how fast.

    gap_seconds: between two. together: so many of a kind at once. pause_seconds: of senders, see there.
    strength: executors, those included that are starting up. serving: no fault while fewer of them have beaten, or,
    where some are to, while the dead still hold tasks.
    spared: of the oldest, who may rescue, nobody is hurt. behind_proxy: the share of executors that go through one.
    """

    faults: Mapping[str, int]
    gap_seconds: tuple[float, float] = (0.05, 0.4)
    together: int = 1
    pause_seconds: float = PAUSE_SECONDS
    strength: int = STRENGTH
    serving: int = 0
    spared: int = 1
    behind_proxy: float = BEHIND_PROXY
    flags: Sequence[str] = ()


CALM = Plan({})


@dataclass(slots=True)
class Figures:
    """What a run came to. recovery_seconds: see checker.restarts()."""

    faults: int
    seconds: float = 0.0
    tasks: int = 0
    messages: int = 0
    rescued: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


def judge(rig: Rig, faults: int, began: float) -> Figures:
    """Read the history of a run that has come to its end, and let the checker see it."""
    seen = rig.history()
    return Figures(
        faults=faults,
        seconds=time.monotonic() - began,
        tasks=sum(change.before is None for change in seen.changes),
        messages=len(seen.said("sent")),
        rescued=sum(change.is_rescue for change in seen.changes),
        recovery_seconds=restarts(seen),
        violations=violations(seen),
    )


class Storm:
    """Does to a rig what it is told to, in an order that its seed decides."""

    def __init__(self, rig: Rig, seed: int, plan: Plan = CALM) -> None:
        self.rig, self.seed, self._plan = rig, seed, plan
        self.chance = random.Random(seed)
        self._victims: list[str] = []
        self._has_poison = False  # which has not ended
        self._thaw_at: list[tuple[float, Member]] = []

    def rage(self) -> Figures:
        """Do each fault so many times, let the rest run to its end, and judge."""
        rig, plan, began = self.rig, self._plan, time.monotonic()
        self.begin()
        queue = [name for name, count in plan.faults.items() for _ in range(count)]
        self.chance.shuffle(queue)
        queue.sort(key=lambda name: name in FIRST)  # which are popped first
        while queue:
            rig.wait_for(self._is_served, "enough executors that have beaten")
            name = queue.pop()
            rig.note("fault", deed=name)
            FAULTS[name](self)
            for _ in range(min(plan.together - 1, queue.count(name))):
                queue.remove(name)
                FAULTS[name](self)
            rig.note("over", deed=name)
            self.fill_up()
            self.wait(self.chance.uniform(*plan.gap_seconds))
        while self._thaw_at or self._is_poisoned():
            self.wait(0.05)
            self.fill_up()
        rig.finish()
        return judge(rig, sum(plan.faults.values()), began)

    def begin(self) -> None:
        """Set everybody to work; return when somebody may rescue."""
        rig = self.rig
        for number in range(2):
            rig.start_sender(self.seed * 100 + number, pause_seconds=self._plan.pause_seconds)
        self.fill_up()
        rig.wait_for_work(50)
        self.wait(rig.timeout_seconds)
        rig.get_used_to(self._at_work()[0])

    def fill_up(self) -> None:
        """Let as many be at work as at the start."""
        while len(self._at_work()) < self._plan.strength:
            proxy = self.rig.proxy if self.chance.random() < self._plan.behind_proxy else None
            self.rig.start_executor(*self._plan.flags, through=proxy)

    def _is_served(self) -> bool:
        if not self._plan.serving:
            return True
        self.wait(0.1)
        names = [member.name for member in self._at_work()]
        ((count,),) = self.rig.ask("SELECT count(*) FROM jobqueue_executor WHERE name = ANY(%s)", names)
        return bool(count >= self._plan.serving) and not self.rig.held_by([*{*self._victims} - {*names}])

    def _at_work(self) -> list[Member]:
        """Who is alive and not frozen, the oldest first."""
        frozen = {member.pid for _, member in self._thaw_at}
        alive = [member for member in self.rig.living() if member.pid not in frozen]
        return sorted(alive, key=lambda member: member.born_at)

    def wait(self, seconds: float) -> None:
        """Let time pass, and thaw whose time has come."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
            for moment, member in list(self._thaw_at):
                if time.monotonic() >= moment:
                    self._thaw_at.remove((moment, member))
                    member.send(signal.SIGCONT)

    # --- faults

    def victim(self) -> Member:
        """Somebody with work in his hands, but for the oldest: some are left who may rescue."""
        self.fill_up()
        others = self._at_work()[self._plan.spared :]
        holders = {
            name
            for (name,) in self.rig.ask(
                "SELECT DISTINCT name FROM jobqueue_executor AS executor"
                " JOIN jobqueue_task AS task ON task.executor_id = executor.id WHERE task.status = 'RUNNING'"
            )
        }
        victim = self.chance.choice([member for member in others if member.name in holders] or others)
        self._victims.append(victim.name)
        return victim

    def kill_executor(self) -> None:
        victim = self.victim()
        self.rig.hurt(victim, "killed")
        victim.send(signal.SIGKILL)
        self.rig.wait_for(victim.ended.is_set, "the end of a killed executor")

    def freeze_executor(self) -> None:
        """Longer than the timeout, as a virtual machine that is moved; then it goes on, and knows nothing."""
        victim = self.victim()
        self.rig.hurt(victim, "frozen")
        victim.send(signal.SIGSTOP)
        self._thaw_at.append((time.monotonic() + self.rig.timeout_seconds * self.chance.uniform(1.5, 3.0), victim))

    def kill_sender(self) -> None:
        self.chance.choice(self.rig.living("sender")).send(signal.SIGKILL)
        self.rig.start_sender(self.chance.randrange(1_000, 1_000_000), pause_seconds=self._plan.pause_seconds)

    def terminate_session(self) -> None:
        """One that was there: else it would be counted, and nothing was done."""

        def terminate() -> bool:
            sessions = self.rig.sessions()
            asked = self.rig.ask("SELECT pg_terminate_backend(%s)", self.chance.choice(sessions)) if sessions else []
            return asked == [(True,)]

        self.rig.wait_for(terminate, "a session to end")

    def kill_backend(self) -> None:
        self.kill_one_of("%")

    def kill_one_of(self, *likes: str) -> None:
        """SIGKILL one server process of whom these names are like: the postmaster ends all others, and recovers."""
        watched = self.rig.ask("SELECT pg_backend_pid()")
        while True:
            pids = [pid for like in likes for pid in self.rig.sessions(like)]
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.chance.choice(pids or self.rig.sessions("%")), signal.SIGKILL)
                break
        # For some milliseconds it still accepts.
        self.rig.wait_for(lambda: self.rig.ask("SELECT pg_backend_pid()") != watched, "the server's recovery")

    def kill_postmaster(self) -> None:
        self.rig.forget_connection()
        self.rig.cluster.kill()
        self.rig.cluster.start()

    def outage(self) -> None:
        """For three timeouts; nothing may be taken from those who live."""
        with strikes.outage(self, []):
            pass

    def restart_behind_pooler(self) -> None:
        """Stop the server for some seconds; the pooler before it accepts clients all the while."""
        rig, pooler = self.rig, self.rig.pooler
        assert pooler is not None
        rig.forget_connection()
        rig.cluster.stop(self.chance.choice(("fast", "immediate")))
        self.wait(self.chance.uniform(*AWAY_SECONDS))
        rig.cluster.start()
        rig.wait_for(lambda: pooler.reaches(rig.database), "the pooler to reach the server again")

    def cut_before_commit(self) -> None:
        self._cut("before")

    def cut_after_commit(self) -> None:
        self._cut("after")

    def _cut(self, where: Where) -> None:
        cuts = self.rig.proxy.cuts
        self.rig.proxy.cut_next_commit(where)
        if not self.rig.proxy.links:
            self.rig.start_executor(through=self.rig.proxy)
        self.rig.wait_for(lambda: self.rig.proxy.cuts > cuts, "a COMMIT to cut")

    def reset_network(self) -> None:
        self.rig.proxy.cut_all()

    def cut_after_login(self) -> None:
        """Cut each new connection after its login, for some seconds; every other time, reset the open ones first."""
        proxy, cuts = self.rig.proxy, self.rig.proxy.cuts
        proxy.cuts_logins = True
        if self.chance.random() < 0.5:
            proxy.cut_all()
        self.wait(self.chance.uniform(*CUT_SECONDS))
        self.rig.wait_for(lambda: proxy.cuts > cuts, "a connection to cut after its login")
        proxy.cuts_logins = False

    def slow_network(self) -> None:
        """A tenth of a second each way, for two seconds, and one reset in it."""
        self.rig.proxy.delay_seconds = 0.1
        self.wait(1.0)
        self.rig.proxy.cut_all()
        self.wait(1.0)
        self.rig.proxy.delay_seconds = 0.0

    def black_hole(self) -> None:
        """For all who go through the proxy."""
        with strikes.black_hole(self, [member for member in self.rig.living() if member.proxy is not None]):
            pass

    def full_disk(self) -> None:
        """For a second or two the tables cannot grow: of what writes to them half fails, then all."""
        for share in (0.5, 1.0):
            self.rig.ask("INSERT INTO trust_full VALUES (%s)", share)
            self.wait(self.chance.uniform(0.5, 1.0))
            self.rig.ask("DELETE FROM trust_full")

    def poison(self) -> None:
        """A task that kills whoever runs it, until its losses are spent."""
        self.rig.run("poisoner", losses=self.rig.options.get("MAX_EXECUTOR_LOSSES", Options().max_executor_losses))
        self._has_poison = True

    def _is_poisoned(self) -> bool:
        self._has_poison &= bool(self.rig.count(f"task_type = '{POISON}' AND finished_at IS NULL"))
        return self._has_poison

    def hold_transaction(self) -> None:
        """A sender that leaves its transaction open for a minute."""
        self.rig.launch("holder", seconds=60.0)


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        Storm.kill_executor,
        Storm.freeze_executor,
        Storm.kill_sender,
        Storm.terminate_session,
        Storm.kill_backend,
        Storm.kill_postmaster,
        Storm.outage,
        Storm.restart_behind_pooler,
        Storm.cut_before_commit,
        Storm.cut_after_commit,
        Storm.reset_network,
        Storm.cut_after_login,
        Storm.slow_network,
        Storm.black_hole,
        Storm.full_disk,
        Storm.hold_transaction,
        Storm.poison,
    )
}

"""Run faults in a random order, one after another, while executors work."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from jobqueue.conf.options import Options
from verification.faults import server_faults
from verification.faults.environment import FaultEnvironment, LaunchedProcess
from verification.faults.figures import Figures, check_run

STRENGTH = 5  # executors at work
BEHIND_PROXY = 0.4  # share of the executors
DOWN_SECONDS = (1.0, 4.5)
CUT_SECONDS = (1.0, 3.0)
# Of senders: about half of the slots have work. With no free slot, rescued tasks would wait.
PAUSE_SECONDS = 0.6
FIRST = {"hold_transaction", "outage"}  # the other faults then run during or after them
POISON = "verification.faults.bodies.poison"
Fault = Callable[["FaultRunner"], None]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """
    Which faults to run, how often, and how fast.

    gap_seconds: pause between two faults. together: faults of one kind at once. pause_seconds: of senders. strength:
    number of executors, including those that are starting. serving: no fault runs while fewer executors have sent a
    heartbeat, or while dead ones still own tasks. spared: number of oldest executors that no fault hits, so that they
    can rescue. behind_proxy: share of executors that connect through the proxy.
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


CALM = FaultPlan({})


class FaultRunner:
    """
    Runs the faults of a plan on an environment, in an order that the seed decides.

    It has more than 20 methods because each kind of fault is one.
    """

    def __init__(self, env: FaultEnvironment, seed: int, plan: FaultPlan = CALM) -> None:
        self.env, self.seed, self._plan = env, seed, plan
        self.random = random.Random(seed)
        self._victims: list[str] = []
        self._has_poison = False  # a poisoned task has not finished yet
        self._thaw_at: list[tuple[float, LaunchedProcess]] = []

    def run(self) -> Figures:
        """Run each fault as often as planned, let all tasks finish, and check the history."""
        env, plan, began = self.env, self._plan, time.monotonic()
        self.begin()
        queue = [name for name, count in plan.faults.items() for _ in range(count)]
        self.random.shuffle(queue)
        queue.sort(key=lambda name: name in FIRST)  # FIRST is popped first
        while queue:
            env.wait_for(self._is_served, "enough executors with a heartbeat")
            fault = queue.pop()
            env.note("fault", fault=fault)
            FAULTS[fault](self)
            for _ in range(min(plan.together - 1, queue.count(fault))):
                queue.remove(fault)
                FAULTS[fault](self)
            env.note("fault_over", fault=fault)
            self.start_missing_executors()
            self.wait(self.random.uniform(*plan.gap_seconds))
        while self._thaw_at or self._is_poisoned():
            self.wait(0.05)
            self.start_missing_executors()
        env.finish()
        return check_run(env, sum(plan.faults.values()), began)

    def begin(self) -> None:
        """Start senders and executors. Return when an executor has been alive long enough to rescue."""
        env = self.env
        for number in range(2):
            env.start_sender(self.seed * 100 + number, pause_seconds=self._plan.pause_seconds)
        self.start_missing_executors()
        env.wait_for_work(50)
        self.wait(env.timeout_seconds)
        env.remember_usage(self._at_work()[0])

    def behind_proxy(self) -> list[LaunchedProcess]:
        """Return the executors behind the proxy, at least one."""
        processes = [process for process in self.env.alive() if process.proxy is not None]
        return processes or [self.env.start_executor(through=self.env.proxy)]

    def start_missing_executors(self) -> None:
        """Start executors until the planned number is at work."""
        while len(self._at_work()) < self._plan.strength:
            proxy = self.env.proxy if self.random.random() < self._plan.behind_proxy else None
            self.env.start_executor(*self._plan.flags, through=proxy)

    def _is_served(self) -> bool:
        if not self._plan.serving:
            return True
        self.wait(0.1)
        names = [process.name for process in self._at_work()]
        ((count,),) = self.env.query("SELECT count(*) FROM jobqueue_executor WHERE name = ANY(%s)", names)
        return bool(count >= self._plan.serving) and not self.env.count_claimed_by([*{*self._victims} - {*names}])

    def _at_work(self) -> list[LaunchedProcess]:
        """Return the executors that are alive and not frozen, the oldest first."""
        frozen = {process.pid for _, process in self._thaw_at}
        alive = [process for process in self.env.alive() if process.pid not in frozen]
        return sorted(alive, key=lambda process: process.started_at)

    def wait(self, seconds: float) -> None:
        """Wait, and thaw executors when they are due."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
            for moment, process in list(self._thaw_at):
                if time.monotonic() >= moment:
                    self._thaw_at.remove((moment, process))
                    process.send(signal.SIGCONT)

    # --- faults of processes and sessions

    def victim(self) -> LaunchedProcess:
        """Choose an executor with claimed tasks. Spare the oldest, so that some can rescue."""
        self.start_missing_executors()
        others = self._at_work()[self._plan.spared :]
        holders = {
            name
            for (name,) in self.env.query(
                "SELECT DISTINCT name FROM jobqueue_executor AS executor"
                " JOIN jobqueue_task AS task ON task.executor_id = executor.id WHERE task.status = 'RUNNING'"
            )
        }
        victim = self.random.choice([process for process in others if process.name in holders] or others)
        self._victims.append(victim.name)
        return victim

    def kill_executor(self) -> None:
        victim = self.victim()
        self.env.note_harm(victim, "killed")
        self.env.kill(victim)

    def freeze_executor(self) -> None:
        """Freeze an executor for longer than the timeout, like a virtual machine that moves. Then it continues."""
        victim = self.victim()
        self.env.note_harm(victim, "frozen")
        victim.send(signal.SIGSTOP)
        self._thaw_at.append((time.monotonic() + self.env.timeout_seconds * self.random.uniform(1.5, 3.0), victim))

    def kill_sender(self) -> None:
        self.env.kill(self.random.choice(self.env.alive("sender")))
        self.env.start_sender(self.random.randrange(1_000, 1_000_000), pause_seconds=self._plan.pause_seconds)

    def terminate_session(self) -> None:
        """Terminate a session that still exists. Otherwise the fault would count without an effect."""

        def terminate() -> bool:
            sessions = self.env.sessions()
            answer = self.env.query("SELECT pg_terminate_backend(%s)", self.random.choice(sessions)) if sessions else []
            return answer == [(True,)]

        self.env.wait_for(terminate, "a session to end")

    def kill_backend(self) -> None:
        self.kill_one_of("%")

    def kill_one_of(self, *likes: str) -> None:
        """SIGKILL one server process by application name. The postmaster then ends all others and recovers."""
        watched = self.env.query("SELECT pg_backend_pid()")
        while True:
            pids = [pid for like in likes for pid in self.env.sessions(like)]
            with suppress(ProcessLookupError):  # the process has just ended
                os.kill(self.random.choice(pids or self.env.sessions("%")), signal.SIGKILL)
                break
        # The server still accepts connections for some milliseconds.
        self.env.wait_for(lambda: self.env.query("SELECT pg_backend_pid()") != watched, "the server's recovery")

    def restart_behind_pooler(self) -> None:
        """Stop the server for some seconds, while the pooler accepts clients."""
        env, pooler = self.env, self.env.pooler
        assert pooler is not None
        env.forget_connection()
        env.cluster.stop(self.random.choice(("fast", "immediate")))
        self.wait(self.random.uniform(*DOWN_SECONDS))
        env.cluster.start()
        env.wait_for(lambda: pooler.reaches(env.database), "the pooler to reach the server again")

    def cut_after_login(self) -> None:
        """Cut each new connection after its login, for some seconds. Half of the time, reset the open ones first."""
        proxy, cuts = self.env.proxy, self.env.proxy.cuts
        proxy.cuts_logins = True
        if self.random.random() < 0.5:
            proxy.cut_all()
        self.wait(self.random.uniform(*CUT_SECONDS))
        self.env.wait_for(lambda: proxy.cuts > cuts, "a connection to cut after its login")
        proxy.cuts_logins = False

    def slow_network(self) -> None:
        """Delay each direction by 0.1 s for three seconds, with one reset in between."""
        with server_faults.slow_network(self, self.behind_proxy()):
            self.wait(1.0)
            self.env.proxy.cut_all()

    def full_disk(self) -> None:
        """Let the tables fail to grow for one or two seconds: first half of the writes fail, then all."""
        for share in (0.5, 1.0):
            self.env.query("INSERT INTO verification_full VALUES (%s)", share)
            self.wait(self.random.uniform(0.5, 1.0))
            self.env.query("DELETE FROM verification_full")

    def poison(self) -> None:
        """Run a task that kills each process that runs it, until its losses are used up."""
        self.env.run("poisoner", losses=self.env.options.get("MAX_EXECUTOR_LOSSES", Options().max_executor_losses))
        self._has_poison = True

    def _is_poisoned(self) -> bool:
        self._has_poison &= bool(self.env.count(f"task_type = '{POISON}' AND finished_at IS NULL"))
        return self._has_poison

    def hold_transaction(self) -> None:
        """Start a sender that leaves its transaction open for a minute."""
        self.env.launch("holder", seconds=60.0)


def run_server_fault(name: str, runner: FaultRunner) -> None:
    """Run a fault of the server or network. A fault of the network hits all executors behind the proxy."""
    victims = runner.behind_proxy() if name in server_faults.THROUGH_PROXY else []
    with server_faults.ALL[name](runner, victims):
        pass


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        FaultRunner.kill_executor,
        FaultRunner.freeze_executor,
        FaultRunner.kill_sender,
        FaultRunner.terminate_session,
        FaultRunner.kill_backend,
        FaultRunner.restart_behind_pooler,
        FaultRunner.cut_after_login,
        FaultRunner.slow_network,
        FaultRunner.full_disk,
        FaultRunner.hold_transaction,
        FaultRunner.poison,
    )
} | {
    name: partial(run_server_fault, name)
    for name in ("kill_postmaster", "outage", "cut_before_commit", "cut_after_commit", "reset_network", "black_hole")
}

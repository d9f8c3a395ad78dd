"""The faults, how often they happen, and the course of one run."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.crashes.count import EVERYBODY, TaskCount, count
from benchmarks.peers.crashes.environment import PeerEnvironment, PeerServer
from benchmarks.peers.crashes.sides import TIMEOUT_SECONDS, Side
from verification.faults.proxy import Where

Inject = Callable[[PeerEnvironment, random.Random], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """title: its row in the table. times: the default number. gap_seconds: shortest and longest pause between two."""

    title: str
    inject: Inject
    times: int
    gap_seconds: tuple[float, float]
    is_behind_proxy: bool = False


def kill(env: PeerEnvironment, chance: random.Random) -> None:
    victim = env.victim(chance)
    env.hurt(victim.name)
    env.kill(victim)


def freeze(env: PeerEnvironment, chance: random.Random) -> None:
    """Freeze a worker for longer than the timeout, as a moved virtual machine is, and resume it."""
    victim = env.victim(chance)
    env.hurt(victim.name)
    victim.process.send_signal(signal.SIGSTOP)
    env.wait(chance.uniform(2.5, 4.0) * TIMEOUT_SECONDS)
    victim.process.send_signal(signal.SIGCONT)


def kill_server(env: PeerEnvironment, chance: random.Random) -> None:
    env.hurt(EVERYBODY)
    env.forget_connection()
    env.cluster.kill()
    env.cluster.start()


def end_sessions(env: PeerEnvironment, chance: random.Random) -> None:
    """End all sessions of one worker. It may have none between two tasks."""
    query = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s"
    )
    env.wait_for(lambda: env.query(query, env.victim(chance).name), "a session to end")


def cut(where: Where, env: PeerEnvironment, chance: random.Random) -> None:
    cuts = env.proxy.cuts
    env.proxy.cut_next_commit(where)
    env.wait_for(lambda: env.proxy.cuts > cuts, "a COMMIT to cut")


FAULTS = {
    "kill": Fault("worker SIGKILL, one at a time", kill, 20, (0.5, 1.5)),
    "freeze": Fault("worker frozen for 2.5 to 4 timeouts, then let go on", freeze, 5, (1.0, 2.0)),
    "server": Fault("postmaster SIGKILL and restart", kill_server, 3, (3.0, 5.0)),
    "sessions": Fault("all sessions of a worker ended by pg_terminate_backend", end_sessions, 20, (0.3, 1.0)),
    "cut-before": Fault("connection cut before COMMIT arrives", partial(cut, "before"), 20, (0.3, 1.0), True),
    "cut-after": Fault("connection cut before COMMIT is answered", partial(cut, "after"), 20, (0.3, 1.0), True),
}


@dataclass(frozen=True, slots=True)
class CrashFigures:
    """exits: the number of workers that ended by themselves and were started again."""

    times: int
    exits: int
    count: TaskCount


def run(server: PeerServer, side: Side, fault: Fault, seed: int, times: int) -> CrashFigures:
    chance = random.Random(seed)
    with server.environment(side, is_behind_proxy=fault.is_behind_proxy) as env:
        env.begin(seed)
        for _ in range(times):
            fault.inject(env, chance)
            env.recover()
            env.wait(chance.uniform(*fault.gap_seconds))
        return CrashFigures(times, env.exits, count(env.finish()))

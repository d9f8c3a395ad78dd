"""The campaigns of `make verify` (FULL), and their short forms in the test suite (QUICK)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verification.faults import failpoint_faults
from verification.faults.checkouts import CheckoutPlan, run_checkouts
from verification.faults.environment import FaultEnvironment
from verification.faults.fault_runner import FaultPlan, FaultRunner
from verification.faults.figures import Figures
from verification.faults.limits import LimitPlan, run_limits
from verification.faults.pgbouncer import PROGRAM, Mode
from verification.faults.slow_statements import SlowPlan, run_slow_statements
from verification.faults.ticks import TickPlan, run_schedules

DURABLE: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "deadlock_timeout": "100ms",
    "timezone": "Europe/Berlin",  # not Django's, so Django starts each connection with a statement
}


@dataclass(frozen=True, slots=True)
class Campaign:
    """
    A series of faults on a running queue.

    title: its row in the table. faults: a plan, or the name of a fault that runs at each failpoint. A TickPlan has
    schedules, a LimitPlan has tasks with limits, a
    CheckoutPlan has workflows, a SlowPlan slows statements. is_timed: compare its restarts with the
    promise. leaves_a_rescuer: an executor that may rescue is always alive; otherwise the times of restarts mean
    nothing. every: 5 means each fifth seed, from the first one. pooler_mode: run PgBouncer in front of the server in
    this mode.
    """

    title: str
    faults: FaultPlan | TickPlan | LimitPlan | CheckoutPlan | SlowPlan | str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_timed: bool = False
    leaves_a_rescuer: bool = True
    every: int = 1
    pooler_mode: Mode | None = None

    def run(self, env: FaultEnvironment, seed: int) -> Figures:
        match self.faults:
            case FaultPlan():
                return FaultRunner(env, seed, self.faults).run()
            case TickPlan():
                return run_schedules(env, seed, self.faults)
            case LimitPlan():
                return run_limits(env, seed, self.faults)
            case CheckoutPlan():
                return run_checkouts(env, seed, self.faults)
            case SlowPlan():
                return run_slow_statements(env, seed, self.faults)
            case str():
                return failpoint_faults.run_at_points(env, seed, self.faults)

    @property
    def can_run(self) -> bool:
        """Return whether this machine has the programs that the campaign needs."""
        return self.pooler_mode is None or PROGRAM is not None


def restarts_behind_pooler(title: str, mode: Mode, times: int, gap_seconds: tuple[float, float]) -> Campaign:
    plan = FaultPlan({"restart_behind_pooler": times}, gap_seconds=gap_seconds, behind_proxy=0.0)
    return Campaign(title, plan, pooler_mode=mode)


MODES: tuple[Mode, ...] = ("session", "transaction")
PRUNING = {"retention": failpoint_faults.RETENTION}
AS_IT_COMES: Mapping[str, Any] = {"max_executor_losses": None}
# The short forms. One dictionary for each file of tests, because the tests of a file run one after the other.
OF_EXECUTORS = {
    "kills": Campaign(
        "24 executors killed, 3 frozen, 3 senders killed",
        FaultPlan(
            {"kill_executor": 24, "freeze_executor": 3, "kill_sender": 3},
            together=8,  # new executors then start, and are ready before the rescue
            pause_seconds=1.5,
            strength=16,
            serving=16,
            spared=3,
            flags=("--threads", "2", "--async-slots", "2"),
        ),
        is_timed=True,
    ),
    "kill-points": Campaign("an executor killed at each failpoint", "kill", PRUNING),
    "poison": Campaign("tasks that kill their process", FaultPlan({"poison": 3}, pause_seconds=1.0), AS_IT_COMES),
}
OF_SERVERS = {
    "server": Campaign(
        "the server killed and its sessions ended, COMMITs cut",
        FaultPlan(
            {
                "kill_postmaster": 2,
                "kill_backend": 5,
                "terminate_session": 20,
                "cut_before_commit": 10,
                "cut_after_commit": 10,
                "reset_network": 2,
            },
            pause_seconds=0.0,
        ),
    ),
    "logins": Campaign(
        "new connections cut after their login",
        FaultPlan({"cut_after_login": 2}, gap_seconds=(2.0, 3.0), behind_proxy=1.0),
    ),
    **{
        f"pooler-{mode}": restarts_behind_pooler(f"the server restarted behind PgBouncer, {mode} mode", mode, 2, (2, 3))
        for mode in MODES
    },
}
OF_LIMITS_AND_TIMES = {
    "ticks": Campaign(
        "50 schedules fire each second, executor SIGKILL each second", TickPlan(schedules=50, seconds=12)
    ),
    "limits": Campaign(
        "30 keys with limits of 1 to 3 and a rate, executor SIGKILL each second", LimitPlan(keys=30, seconds=10)
    ),
    "checkouts": Campaign(
        "100 checkouts that charge, wait, ship or refund, executor SIGKILL each second",
        CheckoutPlan(checkouts=100, each_second=25.0),
    ),
    "slow-statements": Campaign(
        "four statements of an executor slower than their timeout, one at a time",
        SlowPlan(sample=4, learn_seconds=5.0, slow_seconds=5.0, wait_seconds=4.0),
    ),
}
QUICK = OF_EXECUTORS | OF_SERVERS | OF_LIMITS_AND_TIMES
# Counts per seed. 20 seeds inject more than ten times the faults of QUICK.
FULL = {
    "kill": Campaign(
        "executor SIGKILL, one at a time",
        FaultPlan({"kill_executor": 10}, gap_seconds=(2.0, 4.0)),
        is_timed=True,
    ),
    "kills": Campaign(
        "executor SIGKILL, three at a time, several times a second",
        FaultPlan({"kill_executor": 45}, together=3),
    ),
    "poison": Campaign(
        "task that kills its process until `MAX_EXECUTOR_LOSSES` (default: 3) is reached",
        FaultPlan({"poison": 3}),
        AS_IT_COMES,
        is_timed=True,
    ),
    "ticks": Campaign(
        "200 schedules fire each second for two minutes, executor SIGKILL each second", TickPlan(), every=5
    ),
    "limits": Campaign(
        "200 keys with limits of 1 to 3 and a rate for two minutes, executor SIGKILL each second", LimitPlan(), every=5
    ),
    "checkouts": Campaign(
        "2,000 checkouts that charge, wait, ship or refund, executor SIGKILL each second", CheckoutPlan(), every=5
    ),
    "slow-statements": Campaign(
        "each statement of an executor slower than its timeout, one at a time", SlowPlan(), every=10
    ),
    "senders": Campaign("sender SIGKILL", FaultPlan({"kill_sender": 10}, pause_seconds=0.0)),
    "zombies": Campaign(
        "executor frozen for 1.5 to 3 timeouts, then resumed",
        FaultPlan({"freeze_executor": 3}, gap_seconds=(0.2, 1.0)),
    ),
    "hold": Campaign(
        "executor SIGKILL beside a sender's transaction open for 60 s",
        FaultPlan({"hold_transaction": 1, "kill_executor": 15}, gap_seconds=(2.0, 4.0)),
        is_timed=True,
    ),
    "postmaster": Campaign("postmaster SIGKILL and restart", FaultPlan({"kill_postmaster": 2}, gap_seconds=(1.0, 3.0))),
    "backends": Campaign("backend SIGKILL (all sessions end)", FaultPlan({"kill_backend": 3}, gap_seconds=(0.5, 2.0))),
    "sessions": Campaign("session ended by pg_terminate_backend", FaultPlan({"terminate_session": 20})),
    "outage": Campaign(
        "outage of three timeouts, then executor SIGKILL",
        FaultPlan({"outage": 1, "kill_executor": 2}, gap_seconds=(3.0, 5.0)),
        is_timed=True,
    ),
    "cut-before": Campaign("connection cut before COMMIT arrives", FaultPlan({"cut_before_commit": 20})),
    "cut-after": Campaign("connection cut before COMMIT is answered", FaultPlan({"cut_after_commit": 20})),
    "network": Campaign(
        "network reset, slow with a reset, or dropping all packets for 1.5 timeouts",
        FaultPlan({"reset_network": 5, "slow_network": 2, "black_hole": 1}, gap_seconds=(0.2, 1.0)),
    ),
    "logins": Campaign(
        "new connections cut right after their login, for 1 to 3 s",
        FaultPlan({"cut_after_login": 5}, gap_seconds=(2.0, 4.0), behind_proxy=1.0),
    ),
    **{
        f"pooler-{mode}": restarts_behind_pooler(
            f"server stopped for 1 to 4.5 s behind PgBouncer in {mode} mode", mode, 4, (3, 5)
        )
        for mode in MODES
    },
    "disk": Campaign(
        "tables that cannot grow for a second or two (a trigger's SQLSTATE 53100)",
        FaultPlan({"full_disk": 5}, gap_seconds=(0.5, 2.0)),
    ),
    **{
        f"{fault}-points": Campaign(title, fault, PRUNING, leaves_a_rescuer=False, every=2 if fault == "kill" else 5)
        for fault, title in {
            "kill": "executor SIGKILL at each failpoint",
            "freeze": "executor frozen at each failpoint for 1.5 timeouts",
            "term": "SIGTERM at each failpoint",
            "raise": "database error at each failpoint",
            "delay": "delay of 1.5 timeouts at each failpoint",
            "terminate": "sessions ended while an executor is at each failpoint",
            "kill_backend": "backend SIGKILL while an executor is at each failpoint",
            "kill_postmaster": "postmaster SIGKILL while an executor is at each failpoint",
            "outage": "outage of three timeouts from each failpoint on",
            "cut_before_commit": "next COMMIT after each failpoint cut before it arrives",
            "cut_after_commit": "next COMMIT after each failpoint cut before it is answered",
            "reset_network": "network reset while an executor is at each failpoint",
            "slow_network": "network slow from each failpoint on",
            "black_hole": "network drops all packets for 1.5 timeouts from each failpoint on",
            "full_disk": "tables that cannot grow from each failpoint on",
        }.items()
    },
}
ALL = {f"quick-{name}": campaign for name, campaign in QUICK.items()} | FULL

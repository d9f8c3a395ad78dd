"""Measure plain tasks beside other queues, and compare the figures with the goals: `make bench-goals`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import claims, idle, latency, wal
from benchmarks import contestants as who
from benchmarks.arena import Arena
from benchmarks.contestants import Contestant
from benchmarks.drain import Drain
from benchmarks.enqueue import Bare, Enqueue, insert_each
from benchmarks.rounds import Sample, Samples, ratio, take_turns
from benchmarks.sections import BULK_CALLS, BenchmarkPlan, Section, label, settings, shares_of, table

PEERS = [who.PGQUEUER_BEST, who.OX_BEST, who.PROCRASTINATE_BEST, who.TASKS_DB_BEST]
PEERS_AT_REST = [who.PGQUEUER_DEFAULT, who.OX_DEFAULT, who.PROCRASTINATE_DEFAULT, who.TASKS_DB_DEFAULT]
# What limits cost on 2026-11-25 (RESULTS.md): the rate of each drain, of pgqueuer's plain one in the same run.
LIMITED = [
    (who.OURS_KEYS, 10_009 / 27_100),
    (who.OURS_KEY_OF_TEN, 1_697 / 27_100),
    (who.OURS_KEY_OF_ONE, 344 / 27_100),
]
NOISE = 0.9  # a rate that differs by less is not worse
WAL_BEFORE = 1_925  # bytes for each task at commit 7958207, by benchmarks/wal.py, median of three
FEW_EXECUTORS, MANY_EXECUTORS = 2, 16
DRAINED_PER_SECOND = 60_000  # by all executors, at most: so many tasks that they do not run out
SHORTEST_SECONDS = 2.0  # of many executors: in less time, none of them may commit


@dataclass(frozen=True, slots=True)
class Goal:
    """measured: None if it could not be measured. is_minimum: the aim is the lowest allowed value, not the highest."""

    what: str
    measured: float | None
    aim: float
    unit: str = ""
    is_minimum: bool = False

    @property
    def is_met(self) -> bool:
        if self.measured is None:
            return False
        return self.measured >= self.aim if self.is_minimum else self.measured <= self.aim

    def __str__(self) -> str:
        sign, verdict = ">=" if self.is_minimum else "<=", "met" if self.is_met else "**missed**"
        if self.measured is None:
            return f"| {self.what} | not measured | {sign} {self.aim:.4g}{self.unit} | **missed** |"
        return f"| {self.what} | {self.measured:,.4g}{self.unit} | {sign} {self.aim:,.4g}{self.unit} | {verdict} |"


@dataclass(frozen=True, slots=True)
class Race:
    """The samples of several sides that took turns, by name."""

    sides: Mapping[str, Samples]

    def ratio(self, side: str, base: str) -> float | None:
        """Return the median of the ratios of their rates in each round."""
        if side not in self.sides or base not in self.sides:
            return None
        return ratio(self.sides[side], self.sides[base])

    def cpu_us(self, side: str, of: Callable[[Samples], float]) -> float | None:
        return 1000 * of(self.sides[side]) if side in self.sides else None


def race(sides: Mapping[str, Callable[[], Sample]], rounds: int, missing: dict[str, str]) -> Race:
    return Race({side.name: side for side in take_turns(sides, rounds, missing)})


@dataclass(frozen=True, slots=True)
class TimedDrain:
    """A drain that also keeps the seconds of its claims."""

    drain: Drain
    path: Path
    seconds: list[float] = field(default_factory=list)

    def __call__(self) -> Sample:
        self.path.unlink(missing_ok=True)
        sample = self.drain()
        self.seconds.extend(claims.read(self.path))
        return sample


def goals(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    parts = [
        measure(arena, plan, missing)
        for measure in (drains, many_executors, enqueues, bulk_enqueues, waits, at_rest, logged)
    ]
    lines = ["| goal | measured | aim | |", "|---|---:|---:|---|", *[str(goal) for goals, _ in parts for goal in goals]]
    return Section("Goals", "\n\n".join(["\n".join(lines), *[body for _, body in parts]]), missing)


Measured = tuple[list[Goal], str]  # with the tables of what was measured


def drains(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    sides = [who.OURS_BEST, who.OURS_THREADS, *PEERS, *[side for side, _ in LIMITED]]
    drained = race(
        {label(side): Drain(arena=arena, contestant=side, seconds=plan.seconds) for side in sides}, plan.rounds, missing
    )
    best, threads, base = label(who.OURS_BEST), label(who.OURS_THREADS), label(who.PGQUEUER_BEST)
    return [
        Goal("drain, 2 x `--threads=1`, of pgqueuer", drained.ratio(best, base), 1.15, is_minimum=True),
        Goal("drain, 2 x default threads, of pgqueuer", drained.ratio(threads, base), 1.0, is_minimum=True),
        Goal("CPU of the worker for each task", drained.cpu_us(best, lambda side: side.worker_ms), 40, " us"),
        Goal("CPU of PostgreSQL for each task", drained.cpu_us(best, lambda side: side.server_ms), 32, " us"),
        *[
            Goal(f"{side.name}, of pgqueuer's plain drain", drained.ratio(label(side), base), NOISE * before, "", True)
            for side, before in LIMITED
        ],
    ], table([*drained.sides.values()], base=base, against="pgqueuer") + "\n\n" + settings(sides)


def many_executors(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    timed: dict[str, TimedDrain] = {}
    for count in (FEW_EXECUTORS, MANY_EXECUTORS):
        path = arena.folder / f"claims-{count}"
        side = replace(
            who.OURS_THREADS,
            processes=count,
            rate=DRAINED_PER_SECOND // count,
            min_seconds=SHORTEST_SECONDS,
            environment={claims.FILE: str(path)},
        )
        drain = Drain(arena=arena, contestant=side, seconds=plan.seconds, late=True)
        timed[f"{count} x `run_executors`"] = TimedDrain(drain, path)
    drained = race(timed, plan.rounds, missing)
    few, many = timed
    lines = ["| | claims | p50 ms | p99 ms |", "|---|---:|---:|---:|"]
    times = {name: latency.Waits(name, sorted(drain.seconds)) for name, drain in timed.items() if drain.seconds}
    lines += [
        f"| {name} | {len(side.seconds):,} | {side.within(0.5):.1f} | {side.within(0.99):.1f} |"
        for name, side in times.items()
    ]
    return [
        Goal(f"drain, {many}, of {few}", drained.ratio(many, few), 0.95, is_minimum=True),
        Goal(f"claim p99, {many}", times[many].within(0.99) if many in times else None, 100, " ms"),
    ], table([*drained.sides.values()], base=few, against=few) + "\n\nTime of a claim:\n\n" + "\n".join(lines)


def enqueues(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    bare, ours = "bare INSERT", who.OURS_DEFAULT.package
    sides: dict[str, Callable[[], Sample]] = {bare: Bare(arena, insert_each, plan.enqueues)}
    for side in (who.OURS_DEFAULT, *PEERS):
        sides[side.package] = Enqueue(arena, side, "one", plan.enqueues)
    enqueued = race(sides, plan.rounds, missing)
    return [
        Goal("`enqueue()`, of pgqueuer", enqueued.ratio(ours, "pgqueuer"), 1.0, is_minimum=True),
        Goal("`enqueue()`, of a bare INSERT by psycopg", enqueued.ratio(ours, bare), 0.6, is_minimum=True),
    ], "One call each, autocommit:\n\n" + table([*enqueued.sides.values()], base=bare, against=bare, with_workers=False)


def bulk_enqueues(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    sides = {
        side.package: Enqueue(arena, side, "bulk", plan.enqueues * (10 if side.peer in BULK_CALLS else 1))
        for side in (who.OURS_DEFAULT, *PEERS)
    }
    enqueued = race(sides, plan.rounds, missing)
    return [
        Goal("`enqueue_many()`, of pgqueuer", enqueued.ratio(who.OURS_DEFAULT.package, "pgqueuer"), 1.2, "", True)
    ], "In bulk (django-tasks-db: a loop in a transaction):\n\n" + table(
        [*enqueued.sides.values()], base="pgqueuer", against="pgqueuer", with_workers=False
    )


def waits(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    sides = [who.OURS_DEFAULT, who.OURS_LIMITED_NOTES, *one_process(PEERS)]
    times = latency.take_turns(arena, sides, plan.notes, plan.rounds, missing)
    by_name = {side.name: side for side in times}
    ours, pgqueuer = by_name.get(who.OURS_DEFAULT.name), by_name.get(who.PGQUEUER_BEST.name)
    return [
        Goal(
            f"latency of an idle worker, {name}, of pgqueuer's",
            ours.within(share) / pgqueuer.within(share) if ours and pgqueuer else None,
            0.75,
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ], "From the call to the job's first line, one idle process:\n\n" + shares_of(times)


def at_rest(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    sides = one_process([who.OURS_DEFAULT, *PEERS_AT_REST])
    rests = idle.take_turns(arena, sides, plan.idle_seconds, plan.rounds, missing)
    lines = ["| at rest | worker, % of a core | PostgreSQL, % of a core |", "|---|---:|---:|"]
    lines += [f"| {side.name} | {side.worker:.2f} | {side.server:.2f} |" for side in rests]
    ours = next((side.worker for side in rests if side.name == who.OURS_DEFAULT.name), None)
    return [Goal("CPU of an idle executor", ours, 0.5, " %")], "\n".join(lines)


def logged(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> Measured:
    sizes = wal.take_turns(arena, [who.OURS_BEST, *PEERS], plan.enqueues, plan.rounds, missing)
    lines = ["| from enqueue to the end | WAL bytes for each job |", "|---|---:|"]
    lines += [f"| {name} | {size:,.0f} |" for name, size in sizes.items()]
    ours = sizes.get(who.OURS_BEST.name)
    share = None if ours is None else ours / WAL_BEFORE
    return [Goal("WAL from `enqueue()` to SUCCESSFUL, of commit 7958207", share, 0.6)], "\n".join(lines)


def one_process(contestants: Sequence[Contestant]) -> list[Contestant]:
    return [replace(contestant, processes=1) for contestant in contestants]

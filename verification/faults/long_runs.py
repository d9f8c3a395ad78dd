"""The parts of `make verify` beside the campaigns: interleavings, simulations, schedules and mutants."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from tools.postgres import throwaway_cluster
from verification.faults.pages import table, today
from verification.interleavings import cases, mutant_cases
from verification.interleavings.cases import Case
from verification.interleavings.orders import Explored, OrderPlan
from verification.interleavings.process import pool_of
from verification.schedules import runner as years
from verification.simulation import runner
from verification.workflows import runner as programs

# For each seed of `make verify`, which takes 20: 200,000 orders, 2,000 samples at least of each race that has too many
# to run all, and 4,000 plays.
ORDERS = 10_000
SAMPLES = 100
PLAYS = 200
PROGRAMS_IN_MEMORY, PROGRAMS = 5_000, 250  # of workflows: 100,000 in memory with 20 seeds
PROCESSES = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Chapter:
    """The result of a chapter. figures: the values of its page, by their names in the template."""

    figures: Mapping[str, object]
    is_good: bool


@contextmanager
def pool(processes: int = 0) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes on a new database. Its server does not write durably."""
    with throwaway_cluster(fsync="off", synchronous_commit="off", full_page_writes="off") as cluster:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": cluster.url}
        migrate = [sys.executable, "manage.py", "migrate", "-v", "0"]
        subprocess.run(migrate, cwd=Path(__file__).parents[2], env=environment, check=True)
        with pool_of(environment, processes) as made:
            yield made


def interleavings(seed: int, seeds: int) -> Chapter:
    """Each race: every kind of order, or samples, with one seed after the other until there are enough in all."""
    began, plan = time.monotonic(), OrderPlan(seed=seed, samples=SAMPLES * seeds)
    by_case: dict[Case, list[Explored]] = defaultdict(list)
    wanted, failures = cases.longest_first(cases.CASES), 0
    with pool() as processes:
        while wanted and not failures and sum_of(by_case) < ORDERS * seeds:
            started = [(case, cases.begin(processes, case, plan)) for case in wanted]
            for case, future in started:
                explored = future.result()
                by_case[case].append(explored)
                if explored.failure is not None:
                    failures += 1
                    print(cases.report(explored, case), flush=True)
            wanted = [case for case in wanted if not by_case[case][0].is_whole]
            plan = replace(plan, seed=plan.seed + 1, is_sample_only=True)
    samples = [sum(exploration.count for exploration in ones) for ones in by_case.values() if not ones[0].is_whole]
    figures = {
        "orders_date": today(),
        "orders_minutes": (time.monotonic() - began) / 60,
        "orders": sum_of(by_case),
        "races": len(by_case),
        "whole_races": sum(ones[0].is_whole for ones in by_case.values()),
        "fewest_samples": min(samples, default=0),
        "orders_failed": failures,
    }
    print(
        f"interleavings            {figures['orders']:,} orders of {len(by_case)} races, {failures} failed", flush=True
    )
    return Chapter(figures, not failures)


def sum_of(by_case: Mapping[Case, list[Explored]]) -> int:
    return sum(explored.count for ones in by_case.values() for explored in ones)


def simulation(seed: int, seeds: int) -> Chapter:
    """
    Plays of one seed after the other, in a few processes; each has a database of its own. Every second play has limits.
    """
    began, count = time.monotonic(), PLAYS * seeds
    with ExitStack() as stack:
        pools = [stack.enter_context(pool(1)) for _ in range(PROCESSES)]
        parts = [range(seed + number, seed + count, PROCESSES) for number in range(PROCESSES)]
        started = [
            process.submit(runner.run, part, PostgresEngine, has_limits=number % 2 == 1)
            for number, (process, part) in enumerate(zip(pools, parts, strict=True))
        ]
        played = [future.result() for future in started]
    failed = [play for play in played if play.problems]
    for play in failed:
        print(play.story, flush=True)
    figures = {
        "plays_date": today(),
        "plays_minutes": (time.monotonic() - began) / 60,
        "plays": sum(play.count for play in played),
        "plays_chosen": f"seeds {seed} to {seed + count - 1}",
        "moves": sum(play.moves for play in played),
        "plays_failed": len(failed),
    }
    print(
        f"simulation               {figures['plays']:,} plays, {figures['moves']:,} moves, {len(failed)} failed",
        flush=True,
    )
    return Chapter(figures, not failed)


def schedules(seed: int, seeds: int) -> Chapter:
    """Years of schedules on PostgreSQL and on SQLite, one seed after the other."""
    began = time.monotonic()
    with pool(1) as first, pool(1) as other:
        started = [
            process.submit(years.run, range(seed, seed + seeds), kind)
            for process, kind in ((first, PostgresEngine), (other, Engine))
        ]
        played = [future.result() for future in started]
    failed = [play for play in played if play.problem]
    for play in failed:
        print(play.story, flush=True)
    figures = {
        "years_date": today(),
        "years_minutes": (time.monotonic() - began) / 60,
        "years": sum(play.years for play in played),
        "years_chosen": f"seeds {seed} to {seed + seeds - 1}",
        "years_enqueued": sum(play.enqueued for play in played),
        "years_skipped": sum(play.skipped for play in played),
        "years_crashes": sum(play.crashes for play in played),
        "years_failed": len(failed),
    }
    print(
        f"schedules                {figures['years']} years, {figures['years_enqueued']:,} ticks enqueued,"
        f" {figures['years_skipped']:,} skipped, {len(failed)} failed",
        flush=True,
    )
    return Chapter(figures, not failed)


def workflows(seed: int, seeds: int) -> Chapter:
    """Random programs of workflows, in memory and on PostgreSQL."""
    with pool(1) as first, pool(1) as other:
        in_memory = first.submit(programs.run_in_memory, range(seed, seed + PROGRAMS_IN_MEMORY * seeds))
        on_database = other.submit(programs.run_on_database, range(seed, seed + PROGRAMS * seeds))
        results = [in_memory.result(), on_database.result()]
    failed = [result for result in results if result.problems]
    for result in failed:
        print(result.story, flush=True)
    counts = " and ".join(f"{result.count:,}" for result in results)
    faults = sum(result.faults for result in results)
    print(
        f"workflows                {counts} programs, {faults:,} crashes and lost claims, {len(failed)} failed",
        flush=True,
    )
    return Chapter({}, not failed)


def mutants(seed: int, seeds: int) -> Chapter:
    """Run each broken engine until a check catches it."""
    rows, missed = [], []
    by_races, by_plays = mutant_cases.CAUGHT_BY_RACES, mutant_cases.CAUGHT_BY_SIMULATION
    play_seeds = range(seed, seed + mutant_cases.MAX_SEEDS)
    with pool() as steppers, pool(1) as players:
        orders = [cases.begin(steppers, (case.by, case.kind), OrderPlan(seed=seed)) for case in by_races]
        plays = [players.submit(runner.run, play_seeds, case.kind, has_limits=case.has_limits) for case in by_plays]
        explored = [future.result() for future in orders]
        counts = [
            (exploration.count, exploration.failure.problems if exploration.failure is not None else [])
            for exploration in explored
        ]
        counts += [(play.count, play.problems) for play in (future.result() for future in plays)]
    for case, (count, problems) in zip([*by_races, *by_plays], counts, strict=True):
        rows.append(case.cells(count))
        missed += [] if any(text.startswith(case.problem) for text in problems) else [case.name]
    rows.sort()
    for verb, wrong, by, problem, after in rows:
        print(f"caught  {verb:10} {by:42} {after:>12}  {problem}: {wrong}", flush=True)
    for name in missed:
        print(f"NOT CAUGHT: {name}; repeat it: make verify ARGS='--only mutants --seed {seed}'", flush=True)
    figures = {
        "mutants_date": today(),
        "broken_engines": len({case.kind for case in [*by_races, *by_plays]}),
        "missed": ", ".join(missed) or "none",
        "caught": table(mutant_cases.HEAD, rows, numbers_from=4),
    }
    return Chapter(figures, not missed)


ALL: Mapping[str, Callable[[int, int], Chapter]] = {
    "interleavings": interleavings,
    "simulation": simulation,
    "schedules": schedules,
    "workflows": workflows,
    "mutants": mutants,
}

"""The sections of the results. Each function measures one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks import contestants as who
from benchmarks import idle, latency, memory, plots, rates
from benchmarks.arena import Arena
from benchmarks.contestants import STORES, Contestant
from benchmarks.drain import Drain
from benchmarks.enqueue import Bare, Enqueue, copy, insert_each, insert_many
from benchmarks.rounds import Sample, Samples, ratio, take_turns

OURS = [who.OURS_QUIET, who.OURS_BEST, who.OURS_THREADS, who.OURS_ASYNC, who.OURS_DEFAULT]
PEERS_BEST = [
    who.PGQUEUER_BEST, who.CHANCY_BEST, who.PROCRASTINATE_BEST, who.OX_BEST, who.TASKS_DB_BEST, who.CELERY_BEST,
    who.HUEY_BEST,
]  # fmt: skip
PEERS_DEFAULT = [
    who.PGQUEUER_DEFAULT, who.CHANCY_DEFAULT, who.PROCRASTINATE_DEFAULT, who.OX_DEFAULT, who.TASKS_DB_DEFAULT,
    who.CELERY_DEFAULT, who.HUEY_DEFAULT,
]  # fmt: skip
BULK_CALLS = ("jobqueue", "pgqueuer", "procrastinate", "ox", "chancy")  # peers that have one
THREADS = 8  # of an executor by default
FRONT = 200_000
RATES = [
    rates.MeasuredRate(10, 1.0),
    rates.MeasuredRate(100, 1.0),
    rates.MeasuredRate(1_000, 1.0),
    rates.MeasuredRate(600, 10.0),
]
FRONT_CONDITIONS = ("tomorrow", "another queue", "paused queue", "unknown type")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """The lengths and numbers of measurements. backlogs: numbers of other rows. executors: processes at once."""

    rounds: int
    seconds: float
    enqueues: int
    notes: int
    backlogs: Sequence[int]
    front: int
    executors: Sequence[int]
    pinned_jobs: int
    idle_seconds: float
    memory_jobs: int
    limited_jobs: int
    is_quick: bool = False


FULL = BenchmarkPlan(
    rounds=5, seconds=4.0, enqueues=4_000, notes=400, backlogs=(1_000_000, 5_000_000), front=FRONT,
    executors=(1, 2, 4, 8, 16), pinned_jobs=50_000, idle_seconds=60.0, memory_jobs=1_000_000,
    limited_jobs=50_000,
)  # fmt: skip
QUICK = BenchmarkPlan(
    rounds=1, seconds=1.0, enqueues=500, notes=50, backlogs=(), front=50_000, executors=(), pinned_jobs=20_000,
    idle_seconds=5.0, memory_jobs=20_000, limited_jobs=20_000, is_quick=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the results. plots: file names with their SVG."""

    title: str
    body: str
    missing: Mapping[str, str]
    plots: Mapping[str, str] = field(default_factory=dict)


def drain(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    contestants = [*OURS, *PEERS_BEST, *PEERS_DEFAULT]
    left_out = [who.CHANCY_DEFAULT, *([who.CHANCY_BEST, who.OURS_ASYNC] if plan.is_quick else [])]
    contestants = [contestant for contestant in contestants if contestant not in left_out]
    missing[who.CHANCY_DEFAULT.name] = "it starts two jobs every five seconds"
    sides = {
        label(contestant): Drain(arena=arena, contestant=contestant, seconds=plan.seconds) for contestant in contestants
    }
    samples = take_turns(sides, plan.rounds, missing)
    return Section(
        "Drain: no-op jobs a second",
        table(samples, base=label(who.PGQUEUER_BEST), against="pgqueuer's best") + "\n\n" + settings(contestants),
        missing,
    )


def enqueue(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    contestants = [who.OURS_DEFAULT, *PEERS_DEFAULT]
    sides: dict[str, Callable[[], Sample]] = {"bare single INSERT": Bare(arena, insert_each, plan.enqueues)}
    bulk: dict[str, Callable[[], Sample]] = {
        "bare INSERT of 1,000 rows": Bare(arena, insert_many, 10 * plan.enqueues),
        "bare COPY": Bare(arena, copy, 10 * plan.enqueues),
    }
    for contestant in contestants:
        sides[contestant.package] = Enqueue(arena, contestant, "one", plan.enqueues)
        # A peer without a bulk call is slow, so fewer jobs are enough.
        many = 10 if contestant.peer in BULK_CALLS else 1
        bulk[contestant.package] = Enqueue(arena, contestant, "bulk", many * plan.enqueues)
    # psycopg prepares the bare INSERT automatically. Django prepares statements only on request.
    prepared = {"PREPARE_THRESHOLD": "5"}
    sides["django-jobqueue, prepare_threshold=5"] = Enqueue(arena, who.OURS_DEFAULT, "one", plan.enqueues, prepared)
    singles, bulks = take_turns(sides, plan.rounds, missing), take_turns(bulk, plan.rounds, missing)
    return Section(
        "Enqueue: jobs a second from one process",
        "One call each, autocommit:\n\n"
        + table(singles, base="bare single INSERT", against="bare INSERT", with_workers=False)
        + "\n\nIn bulk (django-tasks-db, Celery and huey have no bulk call: a loop):\n\n"
        + table(bulks, base="pgqueuer", against="pgqueuer", with_workers=False),
        missing,
    )


def waits(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    contestants = [who.OURS_DEFAULT, *PEERS_DEFAULT, who.OX_BEST, who.TASKS_DB_BEST]
    # By default chancy starts two jobs every five seconds.
    contestants = [
        who.CHANCY_THREADS if contestant is who.CHANCY_DEFAULT else replace(contestant, processes=1)
        for contestant in contestants
    ]
    idle_waits = latency.take_turns(arena, contestants, plan.notes, plan.rounds, missing)
    busy_waits = latency.take_turns(arena, contestants, 4 * plan.notes, plan.rounds, missing, is_half_busy=True)
    rates = "; ".join(
        f"{contestant.name} {latency.half_load(contestant):,.0f}"
        for contestant in contestants
        if contestant.name not in missing
    )
    body = f"""{shares_of(idle_waits)}

One worker process at half load: half of its rate of no-op jobs, or the rate that one process can enqueue if that is
lower ({rates}):

{shares_of(busy_waits)}"""
    plot = {
        "latency.svg": span_plot("Enqueue to start, idle worker: p50, p95, p99", idle_waits),
        "latency-half-load.svg": span_plot("Enqueue to start, half load: p50, p95, p99", busy_waits),
    }
    return Section("Latency on an idle worker, from the call to the job's first line", body, missing, plot)


def shares_of(waits: Sequence[latency.Waits]) -> str:
    lines = ["| | p50 ms | p95 ms | p99 ms | jobs |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {measured.name} | {measured.within(0.5):.1f} | {measured.within(0.95):.1f} | {measured.within(0.99):.1f} "
        f"| {len(measured.seconds):,} |"
        for measured in waits
    ]
    return "\n".join(lines)


def span_plot(title: str, waits: Sequence[latency.Waits]) -> str:
    shares = {measured.name: [measured.within(share) for share in (0.5, 0.95, 0.99)] for measured in waits}
    return plots.spans(title, shares, unit="ms")


def durations(arena: Arena, plan: BenchmarkPlan) -> Section:
    """Measure tasks that take longer than a no-op."""
    missing: dict[str, str] = {}
    sides = {
        f"{milliseconds} ms": Drain(
            arena=arena,
            contestant=replace(
                who.OURS_DEFAULT,
                rows={"task_type": "'benchmarks.tasks.rest'", "args": f"'[{milliseconds / 1000}]'"},
                rate=round(THREADS * 1000 / milliseconds),
            ),
            seconds=plan.seconds,
        )
        for milliseconds in (5, 100)
    }
    lines = ["| a task takes | jobs/s | of what 8 threads can do | CPU us per job: worker + PostgreSQL |"]
    lines.append("|---|---:|---:|---:|")
    for side in take_turns(sides, plan.rounds, missing):
        max_rate = THREADS * 1000 / float(side.name.removesuffix(" ms"))
        cpu = f"{1000 * side.worker_ms:.0f} + {1000 * side.server_ms:.0f}"
        lines.append(f"| {side.name} | {side.rate:,.1f} | {side.rate / max_rate:.2f} | {cpu} |")
    return Section("Tasks that take 5 and 100 ms: jobqueue, defaults, one process", "\n".join(lines), missing)


def remembering(arena: Arena, plan: BenchmarkPlan) -> Section:
    lines = ["| jobs done | MB |", "|---:|---:|"]
    lines += [f"| {done:,} | {size:.0f} |" for done, size in memory.measure(arena, who.OURS_DEFAULT, plan.memory_jobs)]
    note = "jobqueue, defaults, one process and its supervisor. Shared pages are counted once.\n\n"
    return Section("Memory over many jobs", note + "\n".join(lines), {})


def backlog(arena: Arena, plan: BenchmarkPlan) -> Section:
    """Compare each contestant with itself on an otherwise empty table."""
    missing: dict[str, str] = {}
    lines = [f"| | {' | '.join(['alone, jobs/s', *columns(plan)])} |", f"|---|{'---:|' * (1 + len(columns(plan)))}"]
    shares: dict[str, list[float | None]] = {}
    labels = ["0", *[short(count) for count in plan.backlogs]]
    contestants = [who.OURS_BEST, who.PGQUEUER_BEST]
    if plan.backlogs:
        contestants += [who.PROCRASTINATE_BEST, who.OX_BEST, who.TASKS_DB_BEST, who.CHANCY_BEST]
    for contestant in contestants:
        # For most peers the first backlog is enough. Each further million rows would take minutes.
        is_fast = contestant in (who.OURS_BEST, who.PGQUEUER_BEST)
        limited = plan if is_fast else replace(plan, backlogs=plan.backlogs[:1])
        rates = beside_others(arena, limited, contestant, missing)
        alone = rates.pop("")
        cells = [f"{alone.rate:,.0f}" if alone else "-"]
        beside = [rates.get(name) for name in condition_names(plan)]
        cells += [f"{ratio(neighbour, alone):.2f}" if alone and neighbour else "-" for neighbour in beside]
        lines.append(f"| {contestant.name} | {' | '.join(cells)} |")
        if alone:
            waiting = [rates.get(f"waiting {count}") for count in plan.backlogs]
            shares[contestant.name] = [1.0, *[ratio(sample, alone) if sample else None for sample in waiting]]
    plot = plots.lines("Drain with other jobs waiting", labels, shares, unit="of the rate alone")
    body = "Each as a share of its own rate with no other rows (the median of the rounds' ratios).\n\n"
    return Section(
        "Drain beside other rows", body + "\n".join(lines), missing, {"backlog.svg": plot} if plan.backlogs else {}
    )


def beside_others(
    arena: Arena, plan: BenchmarkPlan, contestant: Contestant, missing: dict[str, str]
) -> dict[str, Samples | None]:
    store = STORES[contestant.peer]
    sides = {"": Drain(arena=arena, contestant=contestant, seconds=plan.seconds)}
    for name in condition_names(plan):
        condition, _, count = name.rpartition(" ")
        if condition in store.conditions:
            flags = ("--queue", "default") if (condition, contestant.peer) == ("another queue", "jobqueue") else ()
            sides[name] = replace(sides[""], condition=condition, others=int(count), flags=flags)
    gone: dict[str, str] = {}
    samples = take_turns({f"{contestant.name} {name}": side for name, side in sides.items()}, plan.rounds, gone)
    missing.update(gone)
    by_name = {side.name.removeprefix(contestant.name).strip(): side for side in samples}
    return {"": by_name.get(""), **by_name}


def condition_names(plan: BenchmarkPlan) -> list[str]:
    names = [f"{condition} {count}" for condition in ("waiting", "finished") for count in plan.backlogs]
    names += [f"{condition} {plan.front}" for condition in FRONT_CONDITIONS]
    return [*names, "100 queues 1"]


def columns(plan: BenchmarkPlan) -> list[str]:
    conditions = [f"{short(count)} {condition}" for condition in ("waiting", "finished") for count in plan.backlogs]
    conditions += [f"{short(plan.front)} in front: {condition}" for condition in FRONT_CONDITIONS]
    return [*conditions, "in 100 queues"]


def executors(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    sides = {
        f"{count} x `run_executors` (8 threads)": Drain(
            arena=arena,
            contestant=replace(who.OURS_THREADS, processes=count, rate=14_000 // count),
            seconds=plan.seconds,
        )
        for count in plan.executors
    }
    samples = take_turns(sides, plan.rounds, missing)
    base = samples[min(1, len(samples) - 1)]
    return Section("1 to 16 executors on the same cores", table(samples, base=base.name, against=base.name), missing)


def pinned(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    contestants = [who.OURS_BEST, who.PGQUEUER_BEST]
    if not plan.is_quick:
        contestants += [who.PROCRASTINATE_BEST, who.OX_BEST, who.TASKS_DB_BEST]
    sides = {
        contestant.name: Drain(
            arena=arena,
            contestant=contestant,
            seconds=plan.seconds,
            jobs=min(plan.pinned_jobs, 5 * contestant.rate),
            pinned=True,
        )
        for contestant in contestants
    }
    samples = take_turns(sides, plan.rounds, missing)
    lines = ["| | jobs | last tenth against the first |", "|---|---:|---:|"]
    lines += [
        f"| {side.name} | {side.count:,.0f} | {'-' if side.last_tenth is None else f'{side.last_tenth:.2f}'} |"
        for side in samples
    ]
    return Section("A snapshot pinned from before the jobs until the end", "\n".join(lines), missing)


def resting(arena: Arena, plan: BenchmarkPlan) -> Section:
    missing: dict[str, str] = {}
    contestants = [replace(contestant, processes=1) for contestant in (who.OURS_DEFAULT, *PEERS_DEFAULT)]
    lines = ["| one process | worker, % of a core | PostgreSQL, % of a core | MB |", "|---|---:|---:|---:|"]
    lines += [
        f"| {usage.name} | {usage.worker:.2f} | {usage.server:.2f} | {usage.megabytes:.0f} |"
        for usage in idle.take_turns(arena, contestants, plan.idle_seconds, 1, missing)
    ]
    note = "MB: proportional set size of all processes of the worker.\n\n"
    return Section("An idle worker", note + "\n".join(lines), missing)


def limits(arena: Arena, plan: BenchmarkPlan) -> Section:
    """Compare limited tasks with plain ones of the same program. All jobs are drained, up to the longest time."""
    missing: dict[str, str] = {}
    plain = {
        contestant.peer: contestant.name for contestant in (who.OURS_BEST, who.PROCRASTINATE_BEST, who.PGQUEUER_BEST)
    }
    contestants = [
        who.OURS_BEST, who.OURS_KEYS, who.OURS_KEY_OF_TEN, who.OURS_KEY_OF_ONE, who.PROCRASTINATE_BEST,
        who.PROCRASTINATE_KEYS, who.PROCRASTINATE_KEY, who.PGQUEUER_BEST, who.PGQUEUER_OF_TEN, who.PGQUEUER_OF_ONE,
    ]  # fmt: skip
    sides = {
        contestant.name: Drain(arena=arena, contestant=contestant, seconds=5 * plan.seconds, jobs=plan.limited_jobs)
        for contestant in contestants
    }
    samples = {side.name: side for side in take_turns(sides, plan.rounds, missing)}
    lines = ["| | jobs/s | lowest to highest | of its plain drain | CPU us per job: worker + PostgreSQL |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, side in samples.items():
        base = samples.get(plain[sides[name].contestant.peer])
        share = f"{ratio(side, base):.2f}" if base else "-"
        cpu = f"{1000 * side.worker_ms:.0f} + {1000 * side.server_ms:.0f}"
        lowest, highest = min(side.rates), max(side.rates)
        lines.append(f"| {name} | {side.rate:,.0f} | {lowest:,.0f} to {highest:,.0f} | {share} | {cpu} |")
    contestants = [who.OURS_DEFAULT, who.OURS_LIMITED_NOTES]
    body = f"""{plan.limited_jobs:,} jobs, or as many as end in {5 * plan.seconds:g} s. procrastinate has locks.
pgqueuer has a limit for each entrypoint. chancy has rates for queues.

{chr(10).join(lines)}

From the call to the job's first line, on an idle worker:

{shares_of(latency.take_turns(arena, contestants, plan.notes, plan.rounds, missing))}

Rates, while more tasks are waiting:

{rates_of(arena, plan, missing)}

An idle worker:

{blocked_at_rest(arena, plan)}"""
    return Section("Limits: tasks with keys", body, missing)


def blocked(arena: Arena, plan: BenchmarkPlan) -> Section:
    """
    Compare the drain of plain tasks with one beside blocked tasks, and with one beside as many scheduled tasks.

    The drain is long: it contains a vacuum of the table, which takes longer with more rows, whatever their status.
    """
    missing: dict[str, str] = {}
    alone = Drain(arena=arena, contestant=who.OURS_BEST, seconds=10 * plan.seconds, jobs=3 * plan.limited_jobs)
    sides = {
        "alone": alone,
        "beside blocked tasks": replace(alone, condition="blocked", others=plan.front),
        "beside scheduled tasks": replace(alone, condition="tomorrow", others=plan.front),
    }
    samples = {side.name: side for side in take_turns(sides, plan.rounds, missing)}
    lines = ["| | jobs/s | lowest to highest | of the drain alone |", "|---|---:|---:|---:|"]
    for name, side in samples.items():
        lowest, highest = min(side.rates), max(side.rates)
        share = f"{ratio(side, samples['alone']):.2f}"
        lines.append(f"| {name} | {side.rate:,.0f} | {lowest:,.0f} to {highest:,.0f} | {share} |")
    note = f"{3 * plan.limited_jobs:,} plain jobs of {who.OURS_BEST.name}, beside {plan.front:,} rows. Nine in ten of "
    note += "them are blocked, and one in ten holds their key in a paused queue.\n\n"
    return Section("Limits: plain tasks beside blocked ones", note + "\n".join(lines), missing)


def rates_of(arena: Arena, plan: BenchmarkPlan, missing: dict[str, str]) -> str:
    lines = ["| | starts, of those that the rate allows | most starts in its period |", "|---|---:|---:|"]
    for rate in RATES:
        for peer in (rates.ours(rate), rates.of_chancy(rate)):
            try:
                sample = rates.measure(arena, peer, rate, max(3 * plan.seconds, 3 * rate.per))
            except RuntimeError as error:
                missing[peer.name] = str(error)
            else:
                lines.append(f"| {peer.name} | {sample.share:.2f} | {sample.max_in_period:,} |")
    return "\n".join(lines)


def blocked_at_rest(arena: Arena, plan: BenchmarkPlan) -> str:
    lines = ["| blocked tasks | worker, % of a core | PostgreSQL, % of a core |", "|---:|---:|---:|"]
    for others in (0, 5 * plan.front):
        sample = idle.measure(arena, who.OURS_DEFAULT, plan.idle_seconds, condition="blocked", others=others)
        lines.append(f"| {others:,} | {sample.worker:.2f} | {sample.server:.2f} |")
    return "\n".join(lines)


SECTIONS: Mapping[str, Callable[[Arena, BenchmarkPlan], Section]] = {
    "drain": drain,
    "enqueue": enqueue,
    "latency": waits,
    "backlog": backlog,
    "executors": executors,
    "pinned": pinned,
    "idle": resting,
    "durations": durations,
    "memory": remembering,
    "limits": limits,
    "blocked": blocked,
}
QUICK_SECTIONS = ("drain", "enqueue", "latency", "backlog", "pinned")


def table(samples: Sequence[Samples], *, base: str, against: str, with_workers: bool = True) -> str:
    """Return a Markdown table. with_workers: with the CPU time of the workers, and the ratio of CPU costs."""
    theirs = next((side for side in samples if side.name == base), None)
    head = ["", "jobs/s", "lowest to highest", f"of {against}"]
    if with_workers:
        head += ["CPU us per job: worker + PostgreSQL", f"of {against}, by CPU"]
    else:
        head += ["PostgreSQL's CPU us per job"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for side in samples:
        row = [side.name, f"{side.rate:,.0f}", f"{min(side.rates):,.0f} to {max(side.rates):,.0f}"]
        row.append(f"{ratio(side, theirs):.2f}" if theirs else "-")
        broker = f" + {1000 * side.broker_ms:.0f} broker" if side.broker_ms else ""
        if with_workers:
            row.append(f"{1000 * side.worker_ms:.0f} + {1000 * side.server_ms:.0f}{broker}")
            row.append(f"{cost(theirs) / cost(side):.2f}" if theirs else "-")
        else:
            row.append(f"{1000 * side.server_ms:.0f}{broker}")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cost(side: Samples) -> float:
    return side.worker_ms + side.server_ms + side.broker_ms


def settings(contestants: Sequence[Contestant]) -> str:
    lines = ["| | processes | settings |", "|---|---:|---|"]
    return "\n".join(
        [
            *lines,
            *[f"| {contestant.name} | {contestant.processes} | {contestant.settings} |" for contestant in contestants],
        ]
    )


def label(contestant: Contestant) -> str:
    return f"{contestant.name}, {contestant.processes} process{'es' if contestant.processes > 1 else ''}"


def short(count: int) -> str:
    return f"{count // 1_000_000} M" if count >= 1_000_000 else f"{count:,}"


def cores() -> int:
    return len(os.sched_getaffinity(0))

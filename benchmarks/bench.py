"""
Compare this queue with others: python -m benchmarks.bench [--quick] [--only drain,latency] [--rounds N] [--seconds S]

Prints the results. A full run also writes benchmarks/RESULTS.md and its plots, after each section.
"""

from __future__ import annotations

import argparse
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from benchmarks import arena, goals, sections

SECTIONS = {**sections.SECTIONS, "goals": goals.goals}  # goals: only on request, it measures again what the others do
HERE = Path(__file__).resolve().parent
PACKAGES = [
    "django-jobqueue", "Django", "psycopg", "pgqueuer", "asyncpg", "procrastinate", "django-ox", "django-tasks-db",
    "chancy", "celery", "huey", "redis",
]  # fmt: skip
READING = """\
`make bench` writes this page. Each round measures all contestants of a table, and starts with another one. A figure is
the median of the rounds, with the lowest and the highest round beside it. **Compare only ratios within one table**:
they were measured in the same minutes on the same machine. Jobs do nothing. All jobs are enqueued before the workers
start. The clock starts when the first job is done, and the database counts the jobs that end while it runs. This queue
does all of its work: it stores results, sends signals, decodes arguments and checks connections. "CPU" is the time that
Linux counts for all processes of a worker, and for those of PostgreSQL, for each job. "By CPU" compares the sums of
both. A busy machine changes them less than it changes rates.
"""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all processes and folders of the run are removed
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="check in two minutes that all works")
    parser.add_argument("--write", action="store_true", help="write the results of --quick, too")
    parser.add_argument("--only", type=lambda names: names.split(","), help=f"run only: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="length of a drain")
    parser.add_argument("--backlogs", type=lambda counts: [int(count) for count in counts.split(",")])
    parser.add_argument("--front", type=int, help="rows in front that no worker may claim")
    parser.add_argument("--enqueues", type=int)
    parser.add_argument("--notes", type=int, help="jobs whose latency is measured")
    parser.add_argument("--idle", type=float, help="seconds to measure an idle worker")
    parser.add_argument("--note", default="", help="a sentence about the run, for the results")
    arguments = parser.parse_args()
    plan = sections.QUICK if arguments.quick else sections.FULL
    changes = {
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "backlogs": arguments.backlogs,
        "front": arguments.front,
        "enqueues": arguments.enqueues,
        "notes": arguments.notes,
        "idle_seconds": arguments.idle,
    }
    if any(value is not None for value in changes.values()):
        plan = replace(plan, **{name: value for name, value in changes.items() if value is not None})
    names = arguments.only or (sections.QUICK_SECTIONS if arguments.quick else list(sections.SECTIONS))
    parts: dict[str, str] = {}
    with arena.opened() as opened:
        head = heading(opened)
        for name in names:
            print(f"--- {name}", file=sys.stderr, flush=True)
            section = SECTIONS[name](opened, plan)
            parts[section.title] = rendered(section, circumstances(plan, arguments.note))
            if arguments.write or not arguments.quick:
                write(head, parts, section.plots)
    print("\n".join([head, *parts.values()]))


def heading(opened: arena.Arena) -> str:
    with psycopg.connect(opened.server.url) as connection:
        server = arena.scalar(connection, "SHOW server_version")
    versions = ", ".join(f"{name} {version}" for name, version in arena.versions(PACKAGES).items())
    redis = "" if opened.broker else "; no Redis: `redis-server` is not installed"
    return f"""# Results

{READING}
* {sections.cores()} cores of {processor()}, {platform.system()} {platform.release().partition("-")[0]}
* PostgreSQL {server} (fsync, synchronous_commit, full_page_writes on){redis}
* Python {platform.python_version()}, {versions}
"""


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return git.stdout.strip() or "unknown"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def circumstances(plan: sections.BenchmarkPlan, note: str) -> str:
    rounds = f"{plan.rounds} round{'s' if plan.rounds > 1 else ''} of {plan.seconds:g} s"
    return " ".join([f"*{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}, {rounds}.*", note]).strip()


def write(head: str, parts: dict[str, str], svgs: Mapping[str, str]) -> None:
    """Sections that were not asked for stay as an earlier run left them."""
    folder = HERE / "plots"
    folder.mkdir(exist_ok=True)
    for name, svg in svgs.items():
        (folder / name).write_text(svg)
    file = HERE / "RESULTS.md"
    earlier = file.read_text().split("\n## ")[1:] if file.exists() else []
    kept = {part.partition("\n")[0]: "## " + part.rstrip() + "\n" for part in earlier}
    file.write_text("\n".join([head, *(kept | parts).values()]))


def rendered(section: sections.Section, note: str) -> str:
    parts = [f"## {section.title}", "", note, "", section.body, ""]
    parts += [f"![{section.title}](plots/{name})\n" for name in section.plots]
    if section.missing:
        parts += ["Not measured:", "", *[f"* {name}: {why}" for name, why in section.missing.items()], ""]
    return "\n".join(parts)


if __name__ == "__main__":
    main()

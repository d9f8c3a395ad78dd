"""`make verify`: run all checks at length and write docs/reliability-results.md."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

import django

from verification.interleavings.process import leave, pool_of

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
for name in [name for name in os.environ if name.startswith("PG")]:
    del os.environ[name]  # PGSERVICE and others would point at another server
django.setup()

from verification.faults import campaigns, long_runs, pages, report  # noqa: E402 - they import models
from verification.faults.campaign_runs import run_campaign  # noqa: E402

JOBS = os.cpu_count() or 1
CHAPTERS = (*long_runs.ALL, "campaigns")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make verify ARGS=...", description=__doc__)
    parser.add_argument("--seeds", type=int, help="the number of seeds (default: 20, or 1 for named campaigns)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument(
        "--only",
        metavar="NAME",
        help=f"one chapter ({', '.join(CHAPTERS)}), or names of campaigns (kill,zombies). Named campaigns "
        "write their rows only with more than one seed",
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many campaigns run in parallel (default: {JOBS})")
    parser.add_argument("--remark", default="", help="a sentence for the page about the machine or the run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    names = [] if options.only in (None, *CHAPTERS) else options.only.split(",")
    if unknown := [name for name in names if name not in campaigns.ALL]:
        choices = ", ".join([*CHAPTERS, *campaigns.ALL])
        parser.error(f"unknown name for --only: {', '.join(unknown)}. Choose from {choices}.")
    if options.seeds is None:
        options.seeds = 1 if names else 20
    is_good = True
    for name in long_runs.ALL:
        if options.only in (None, name):
            chapter = long_runs.ALL[name](options.seed, options.seeds)
            is_good &= chapter.is_good
            report.write(chapter.figures)
    if options.only not in long_runs.ALL:
        able = [name for name, campaign in campaigns.FULL.items() if campaign.can_run]
        if not names and len(able) < len(campaigns.FULL):
            print("PgBouncer is not installed. Its campaigns are skipped.", flush=True)
        is_good &= run_campaigns(names or able, options)
    return 0 if is_good else 1


def run_campaigns(names: Sequence[str], options: argparse.Namespace) -> bool:
    """Run campaigns in parallel. Write the page after each seed, so that an interrupted run keeps its results."""
    seeds, is_part = range(options.seed, options.seed + options.seeds), set(names) != set(campaigns.FULL)
    selected = {name: campaigns.ALL[name] for name in names}
    rows = {name: report.CampaignRow(campaign.title, campaign.leaves_a_rescuer) for name, campaign in selected.items()}
    began, is_good = time.monotonic(), True
    with pool_of(os.environ, options.jobs) as pool:
        started = {
            seed: [
                pool.submit(run_campaign, name, seed)
                for name, campaign in selected.items()
                if (seed - seeds.start) % campaign.every == 0
            ]
            for seed in seeds
        }
        for attempts in started.values():
            for future in attempts:
                made = future.result()
                print(made, flush=True)
                rows[made.name].add(made.figures, made.seed)
                is_good &= not made.failure
            if len(seeds) > 1 or not is_part:
                write(rows, began, options.remark)
    return is_good and in_time(rows)


def write(rows: Mapping[str, report.CampaignRow], began: float, remark: str) -> None:
    report.write(
        report.chapter_of(
            [row for row in rows.values() if row.faults or row.stalled],
            [campaign.title for campaign in campaigns.FULL.values()],
            pages.PAGE.read_text(),
            minutes=(time.monotonic() - began) / 60,
            remark=remark,
        )
    )


def in_time(rows: Mapping[str, report.CampaignRow]) -> bool:
    """Return whether restarts were as fast as promised in the campaigns that measure them."""
    timed = {name: row for name, row in rows.items() if campaigns.ALL[name].is_timed and row.recovery_seconds}
    late = {name: row.percentile(0.99) for name, row in timed.items() if row.percentile(0.99) > report.LATEST_SECONDS}
    for name, seconds in late.items():
        print(f"{name}: 1 % of restarts took at least {seconds:.1f} s. The promise is {report.LATEST_SECONDS:g} s.")
        print(f"  Repeat it: make verify ARGS='--only {name} --seeds {len(timed[name].seeds)}'")
    return not late


if __name__ == "__main__":
    sys.exit(main())

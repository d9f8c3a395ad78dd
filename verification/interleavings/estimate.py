"""
Estimate how many kinds of order each race of two connections has.

Usage: `python -m verification.interleavings.estimate 800 peers`. The first argument is the number of random descents,
each of about 10 ms. The other arguments are parts of race names.
"""

from __future__ import annotations

import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"


def main(descents: int, parts: list[str]) -> None:
    import django

    django.setup()
    from verification.faults.long_runs import pool
    from verification.interleavings import cases, process
    from verification.interleavings.scenarios import SCENARIOS

    wanted = [case for case in cases.CASES if SCENARIOS[case[0]].clients == 2]
    with pool() as processes:
        started = [
            (cases.name_of(case), processes.submit(process.estimate, *case, descents))
            for case in wanted
            if not parts or any(part in cases.name_of(case) for part in parts)
        ]
        for name, future in started:
            count, error = future.result()
            sys.stdout.write(f"{name:60} {count:10,.0f} +- {error:,.0f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

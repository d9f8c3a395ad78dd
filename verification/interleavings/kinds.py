"""
About how many kinds of order each race of two connections has: `python -m verification.interleavings.kinds 800 peers`.

The first is how many random descents to make, a hundredth of a second each; the others are parts of names.
"""

from __future__ import annotations

import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"


def main(descents: int, parts: list[str]) -> None:
    import django

    django.setup()
    from verification.faults.at_length import pool
    from verification.interleavings import cases, process
    from verification.interleavings.scenarios import SCENARIOS

    wanted = [case for case in cases.CASES if SCENARIOS[case[0]].actors == 2]
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

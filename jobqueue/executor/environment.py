"""Variables of the environment that look like ours, and that nobody reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from jobqueue import failpoints
from jobqueue.executor import farewell

# Of the demo and the tests, whose environment the executors that they start have too.
OF_THE_CHECKOUT = {f"JOBQUEUE_{name}" for name in ("PG_BIN", "SAMPLES", "ORDER", "SEED", "SEEDS")}


def unread_variables(given: Iterable[str], flags: Collection[str]) -> str:
    """Say in one line which of the given variables are no flags, with the nearest; nothing where all are read."""
    known = {*flags, farewell.VARIABLE, failpoints.VARIABLE} | OF_THE_CHECKOUT
    unread = sorted(name for name in given if name.startswith("JOBQUEUE_") and name not in known)
    if not unread:
        return ""
    return (
        f"The environment has what run_executors does not read: {', '.join(_with_nearest(n, flags) for n in unread)}."
    )


def _with_nearest(name: str, flags: Collection[str]) -> str:
    near = {flag.removeprefix("JOBQUEUE_"): flag for flag in flags}  # all begin alike, which is no likeness
    for found in difflib.get_close_matches(name.removeprefix("JOBQUEUE_").upper(), near, n=1, cutoff=0.6):
        return f"{name} (did you mean {near[found]}?)"
    return name

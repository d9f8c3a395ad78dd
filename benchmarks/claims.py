"""How long claims take: a process of the measured site appends a line to a file for each claim that got tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobqueue.engine.postgres.claim import PostgresClaims
    from jobqueue.values.records import ClaimedBatch, ClaimRequest

    Claim = Callable[[PostgresClaims, ClaimRequest], ClaimedBatch]

FILE = "BENCH_CLAIMS"
WARM_UP_SECONDS = 0.5  # each executor prepares its statements


def record_if_asked() -> None:
    """If the environment names a file, let this process append the time and the duration of each claim to it."""
    if FILE not in os.environ:
        return
    from jobqueue.engine.postgres.claim import PostgresClaims

    descriptor = os.open(os.environ[FILE], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for name in ("claim", "take"):  # alone, and in the transaction of a commit
        setattr(PostgresClaims, name, timed(getattr(PostgresClaims, name), descriptor))


def timed(claim: Claim, descriptor: int) -> Claim:
    @wraps(claim)
    def timed_claim(self: PostgresClaims, request: ClaimRequest) -> ClaimedBatch:
        began_at = time.perf_counter()
        batch = claim(self, request)
        if batch:
            os.write(descriptor, f"{time.time():.3f} {time.perf_counter() - began_at:.6f}\n".encode())
        return batch

    return timed_claim


def read(path: Path) -> Sequence[float]:
    """Return the seconds of each claim, without those of the first WARM_UP_SECONDS."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    times = [(float(at), float(seconds)) for at, seconds in lines]
    first = min((at for at, _ in times), default=0.0)
    return [seconds for at, seconds in times if at > first + WARM_UP_SECONDS]

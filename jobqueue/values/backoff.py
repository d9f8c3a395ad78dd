"""The wait before a retry."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobqueue.values.kinds import Rule, check


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff in seconds: base, base x factor, base x factor^2, ... up to cap."""

    base: float = 2.0  # seconds before the first retry
    cap: float = 3600.0  # the longest wait in seconds, without jitter
    factor: float = 2.0  # by which each wait is longer than the one before
    # each wait is longer by a random part of it up to this fraction, so that not all tasks retry at once
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, low in (("base", 0.0), ("cap", 0.0), ("factor", 1.0), ("jitter", 0.0)):
            check(f"Backoff({name}=...)", getattr(self, name), _finite(low))

    def seconds(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Return the wait after a failed attempt (1: the first). draw: returns a number in [0, 1)."""
        # factor**1000 exceeds any useful cap, and larger powers overflow.
        steps = min(max(attempt, 1) - 1, 1000)
        try:
            bare = min(self.cap, self.base * self.factor**steps)
        except OverflowError:
            bare = self.cap
        return bare * (1.0 + self.jitter * draw())


def _finite(low: float) -> Rule:
    def is_valid(value: Any) -> bool:
        is_number = issubclass(type(value), int | float) and not isinstance(value, bool)
        return is_number and low <= value < float("inf")

    return Rule(is_valid, f"a finite number from {low} up")

"""One run of one campaign, on its own server. Several runs may work in parallel, each in a process."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from demo_project.postgres import throwaway_cluster
from verification.faults import campaigns
from verification.faults.checker import Violation
from verification.faults.fault_runner import Figures


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a run. figures: None if the run did not finish. failure: empty if the run was good."""

    name: str
    seed: int
    seconds: float
    figures: Figures | None
    failure: str = ""

    def __str__(self) -> str:
        result = f"FAILED: {self.failure}"
        if self.figures is not None and not self.failure:
            result = f"good: {self.figures.faults} faults, {self.figures.tasks} tasks, {self.figures.rescued} rescued"
        return f"{self.name:24} seed {self.seed:<4} {self.seconds:6.1f} s  {result}"


def error_text(error: Exception) -> str:
    """Return the error's text with its notes. For an error of the environment itself, add where it was raised."""
    if isinstance(error, AssertionError):
        return "\n".join([str(error), *error.__notes__])
    return "".join(traceback.format_exception(error))


def attempt(name: str, seed: int) -> Attempt:
    began, figures, failure = time.monotonic(), None, ""
    with throwaway_cluster(**campaigns.DURABLE) as cluster:
        try:
            figures = campaigns.run(name, cluster, seed)
        except Exception as error:  # noqa: BLE001 - one run that went wrong, also by the environment's own fault, ends no others
            figures = error.figures if isinstance(error, campaigns.Violated) else None
            failure = error_text(error)
        if "deadlock detected" in cluster.log.read_text(errors="replace"):
            failure += f"\nThe server's log tells of a deadlock. {campaigns.once_more(name, seed)}"
            if figures is not None:
                figures.violations.append(Violation("deadlock", "in the server's log"))
    return Attempt(name, seed, time.monotonic() - began, figures, failure)

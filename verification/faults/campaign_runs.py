"""One run of one campaign, on its own server. Several runs may work in parallel, each in a process."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from tools.postgres import Cluster, throwaway_cluster
from verification.faults import campaigns
from verification.faults.checker import RuleViolation
from verification.faults.environment import fault_environment
from verification.faults.figures import Figures


@dataclass(slots=True)
class CampaignRun:
    """The result of a run. figures: None if the run did not finish. failure: empty if the run was good."""

    name: str
    seed: int
    seconds: float = 0.0
    figures: Figures | None = None
    failure: str = ""

    def __str__(self) -> str:
        result = f"FAILED: {self.failure}"
        if self.figures is not None and not self.failure:
            result = f"good: {self.figures.faults} faults, {self.figures.tasks} tasks, {self.figures.rescued} rescued"
            result += f"; {self.figures.ticks}" if self.figures.ticks else ""
        return f"{self.name:24} seed {self.seed:<4} {self.seconds:6.1f} s  {result}"


def run_campaign(name: str, seed: int) -> CampaignRun:
    """Run a campaign. Any error, also of the environment itself, becomes the failure of this run alone."""
    began, made = time.monotonic(), CampaignRun(name, seed)
    with throwaway_cluster(**campaigns.DURABLE) as cluster:
        try:
            _run(made, cluster)
        except AssertionError as error:
            made.failure = "\n".join([str(error), *getattr(error, "__notes__", ())])
        except Exception as error:  # noqa: BLE001
            made.failure = "".join(traceback.format_exception(error))
        if "deadlock detected" in cluster.log.read_text(errors="replace"):
            made.failure += "\nThe server's log reports a deadlock."
            if made.figures is not None:
                made.figures.violations.append(RuleViolation("deadlock", "in the server's log"))
    if made.failure:
        made.failure += f"\nseed {seed}; repeat it: make verify ARGS='--only {name} --seed {seed}'"
    made.seconds = time.monotonic() - began
    return made


def _run(made: CampaignRun, cluster: Cluster) -> None:
    campaign = campaigns.ALL[made.name]
    with fault_environment(cluster, pooler_mode=campaign.pooler_mode, **campaign.options) as env:
        try:
            made.figures = campaign.run(env, made.seed)
            listed = "\n".join(map(str, made.figures.violations[:20]))
            assert not listed, f"{len(made.figures.violations)} violations:\n{listed}\nsee {env.folder}"
        except AssertionError as error:
            error.add_note(env.last_lines(str(error)))
            raise

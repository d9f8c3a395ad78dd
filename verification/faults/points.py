"""Each fault at each failpoint: who comes there dies, freezes, fails or waits, or a strike befalls what it needs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from jobqueue.failpoints import POINTS
from verification.faults import strikes
from verification.faults.rig import Member, Rig
from verification.faults.storm import Figures, Storm, judge

TOGETHER = 4  # points at a time
# What has to happen before a point is reached.
BEFORE: Mapping[str, str] = {"release.before": "claim.after=raise", "release.after": "claim.after=raise"}
IN_RESCUE = ("rescue.before", "rescue.after")
IN_SENDERS = ("wake.before", "wake.after")
RETENTION = {"SUCCESSFUL": 2.0, "CANCELLED": 2.0, "FAILED": None}
PRUNE_SECONDS = 1.0
ENOUGH_HELD = 3  # tasks: some may end before their executor does


def visit(rig: Rig, seed: int, deed: str, points: Iterable[str] = POINTS) -> Figures:
    """Do one deed, of a failpoint or a strike, at each of the points, in a fleet that works on."""
    began, storm, asked = time.monotonic(), Storm(rig, seed), list(points)
    storm.begin()
    rig.note("fault", deed=deed)
    ordinary = [point for point in asked if point not in IN_RESCUE]
    size = 1 if deed in strikes.LASTING else TOGETHER
    groups = [ordinary[start : start + size] for start in range(0, len(ordinary), size)]
    before: Iterable[Member] = ()
    for group in [*groups, *([point] for point in asked if point in IN_RESCUE)]:
        armed = {point: _arm(storm, point, deed) for point in group}
        _do(storm, deed, armed)
        rig.stop(*(member for member in before if member.is_alive))  # or the fleet would outgrow a small machine
        before = armed.values()
        storm.fill_up()
    rig.finish()
    return judge(rig, len(asked), began)


def _arm(storm: Storm, point: str, deed: str) -> Member:
    rig = storm.rig
    at_point = "freeze" if deed in strikes.ALL else deed
    seconds = f":{rig.timeout_seconds * 1.5:g}" if deed == "delay" else ""
    plan: dict[str, Any] = {"failpoints": f"{BEFORE.get(point, '')} {point}={at_point}{seconds}"}
    if deed in strikes.THROUGH_PROXY:
        plan["through"] = rig.new_proxy()
    if point in IN_SENDERS:
        member = rig.start_sender(storm.chance.randrange(1_000, 1_000_000), **plan)
    else:
        member = rig.start_executor(prune_seconds=PRUNE_SECONDS, **plan)
    # Who is asked to stop, or met an error, loses nothing: a rescue of what it held would be a violation.
    if deed in ("kill", "freeze") or (deed == "delay" and point.startswith("heartbeat")):
        rig.hurt(member, f"{deed} at {point}")
    return member


def _do(storm: Storm, deed: str, armed: Mapping[str, Member]) -> None:
    rig = storm.rig
    for point, member in armed.items():
        if point in IN_RESCUE:
            _give_it_something_to_rescue(storm, member)
    if strike := strikes.ALL.get(deed):
        _upon_each_that_stands(storm, strike, armed)
        return
    for point, member in armed.items():
        line = f"failpoint {point}:"
        rig.wait_for(lambda line=line, member=member: line in rig.log(member), f"{member.name} at {point}")  # type: ignore[misc]
    match deed:
        case "kill" | "term":
            for point, member in armed.items():
                rig.wait_for(member.ended.is_set, f"the end of {member.name} at {point}")
                assert member.code == (-signal.SIGKILL if deed == "kill" else 0), (point, member.code)
        case "freeze":
            for member in armed.values():
                rig.wait_for(lambda member=member: member.state == "T", f"{member.name} to stand still")  # type: ignore[misc]
            storm.wait(rig.timeout_seconds * 1.5)
            for member in armed.values():
                member.send(signal.SIGCONT)


def _upon_each_that_stands(storm: Storm, strike: strikes.Strike, armed: Mapping[str, Member]) -> None:
    """At once: who stood until the others had come, longer than the timeout, would lose its tasks, and rightly so."""
    rig, left = storm.rig, dict(armed)
    while left:
        standing = rig.wait_for(
            lambda: {point: member for point, member in left.items() if member.state == "T"},
            f"who stands at {list(left)}",
        )
        with strike(storm, list(standing.values())):
            for point, member in standing.items():
                member.send(signal.SIGCONT)
                del left[point]


def _give_it_something_to_rescue(storm: Storm, rescuer: Member) -> None:
    """All others die once this one may rescue, so that nobody is faster."""
    rig = storm.rig
    rig.wait_for_first_beat(rescuer)
    storm.wait(rig.timeout_seconds * 1.2)
    others = [member for member in rig.living() if member is not rescuer]
    names = [member.name for member in others]
    rig.wait_for(lambda: rig.held_by(names) >= ENOUGH_HELD, "tasks in the hands of others")
    for member in others:
        rig.hurt(member, "killed")
        member.send(signal.SIGKILL)
    for member in others:
        rig.wait_for(member.ended.is_set, f"the end of {member.name}")

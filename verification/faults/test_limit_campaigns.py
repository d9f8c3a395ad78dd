"""The short campaigns with schedules, with limits, and with statements slower than their timeout."""

from __future__ import annotations

from collections.abc import Callable

from verification.faults.campaigns import OF_LIMITS_AND_TIMES
from verification.faults.quick_campaigns import check, each_of


@each_of(OF_LIMITS_AND_TIMES)
def test_schedules_and_limits_hold_while_executors_die(
    record_property: Callable[[str, object], None], name: str
) -> None:
    check(name, record_property)

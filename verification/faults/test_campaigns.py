"""The short campaigns in which executors and senders die."""

from __future__ import annotations

from collections.abc import Callable

from verification.faults.campaigns import OF_EXECUTORS
from verification.faults.quick_campaigns import check, each_of


@each_of(OF_EXECUTORS)
def test_no_task_is_lost_and_none_runs_twice(record_property: Callable[[str, object], None], name: str) -> None:
    check(name, record_property)

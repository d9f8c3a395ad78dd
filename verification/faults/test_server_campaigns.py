"""The short campaigns in which the server, its sessions or the network fail."""

from __future__ import annotations

from collections.abc import Callable

from verification.faults.campaigns import OF_SERVERS
from verification.faults.quick_campaigns import check, each_of


@each_of(OF_SERVERS)
def test_no_task_is_lost_to_a_failing_server(record_property: Callable[[str, object], None], name: str) -> None:
    check(name, record_property)

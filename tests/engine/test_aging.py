"""
The order of claims, beside the rule of an ancestor of this queue, a small service in Go.

At each pop it computed `priority + seconds waited` of every job anew and took the highest. Here a rank that never
changes while a task waits has to give the same order, with AGING=1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.engine.bench import Bench

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@dataclass(frozen=True)
class Enqueue:
    priority: int


@dataclass(frozen=True)
class Wait:
    seconds: int


@dataclass(frozen=True)
class Pop:
    count: int


Step: TypeAlias = Enqueue | Wait | Pop
STEPS = st.lists(
    st.one_of(
        st.builds(Enqueue, st.integers(-100, 100)),
        st.builds(Enqueue, st.integers(-3, 3)),
        st.builds(Wait, st.integers(0, 60)),
        st.builds(Wait, st.integers(0, 3)),
        st.builds(Pop, st.integers(1, 4)),
    ),
    min_size=3,
    max_size=25,
)


def ancestors_choice(bench: Bench, count: int) -> list[UUID]:
    """Pop by the old rule; all that it needs are priorities, and how long jobs have waited."""
    now = bench.engine.now()
    effective = {
        pk: priority + (now - enqueued_at).total_seconds()
        for pk, priority, enqueued_at in bench.engine.tasks.ready().values_list("pk", "priority", "enqueued_at")
    }
    return sorted(effective, key=lambda pk: effective[pk], reverse=True)[:count]


@example(steps=[Enqueue(0), Wait(11), Enqueue(10), Pop(2)])
@example(steps=[Enqueue(0), Wait(9), Enqueue(10), Pop(1), Pop(1)])
@example(steps=[Enqueue(-100), Wait(60), Enqueue(-50), Wait(60), Enqueue(5), Enqueue(9), Pop(3), Wait(60), Pop(1)])
@given(steps=STEPS)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_claims_with_an_aging_of_one_second_come_in_the_ancestors_order(bench: Bench, steps: Sequence[Step]) -> None:
    bench = bench.with_options(aging=1.0)
    bench.engine.tasks.all().delete()
    for step in [*steps, Pop(100)]:
        match step:
            case Enqueue(priority):
                bench.add(priority=priority)
            case Wait(seconds):
                bench.time_passes(seconds)
            case Pop(count):
                expected = ancestors_choice(bench, count)
                assert bench.claim_ids(count) == expected

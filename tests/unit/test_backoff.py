from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue import Backoff, Retry


def never() -> float:
    return 0.0


def test_wait_grows_by_factor_up_to_cap() -> None:
    backoff = Backoff(base=2.0, factor=3.0, cap=50.0, jitter=0.0)

    assert [backoff.seconds(attempt) for attempt in range(1, 6)] == [2.0, 6.0, 18.0, 50.0, 50.0]


@pytest.mark.parametrize(("draw", "seconds"), [(lambda: 0.0, 4.0), (lambda: 0.5, 4.2), (lambda: 1.0, 4.4)])
def test_jitter_is_added_to_wait(draw: Callable[[], float], seconds: float) -> None:
    assert Backoff(base=2.0, jitter=0.1).seconds(2, draw) == pytest.approx(seconds)


def test_jitter_is_added_to_cap() -> None:
    """Without it, all tasks that failed in one outage would retry at once."""
    assert Backoff(cap=10.0, jitter=0.5).seconds(100, lambda: 1.0) == pytest.approx(15.0)


@given(
    attempt=st.integers(min_value=1, max_value=1_000_000),
    base=st.floats(min_value=0.0, max_value=1e6),
    factor=st.floats(min_value=1.0, max_value=1e6),
    cap=st.floats(min_value=0.0, max_value=1e9),
    jitter=st.floats(min_value=0.0, max_value=10.0),
)
def test_wait_stays_within_jitter(attempt: int, base: float, factor: float, cap: float, jitter: float) -> None:
    backoff = Backoff(base=base, factor=factor, cap=cap, jitter=jitter)
    bare = backoff.seconds(attempt, never)

    assert min(base, cap) <= bare <= cap
    assert bare <= backoff.seconds(attempt) <= bare * (1.0 + jitter)
    assert bare <= backoff.seconds(attempt + 1, never)


WRONG = [{"base": -1}, {"cap": float("inf")}, {"factor": 0.5}, {"jitter": float("nan")}, {"base": "2"}, {"cap": True}]


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_backoff_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Backoff(**wrong)


@pytest.mark.parametrize("after", [float("nan"), float("inf"), True, "3"])
def test_retry_refuses_other_waits(after: Any) -> None:
    assert [Retry(after=wait).after for wait in (None, 0.5, timedelta(minutes=1), -5)] == [None, 0.5, 60.0, 0.0]
    with pytest.raises(ValueError, match="Retry"):
        Retry(after=after)

from datetime import timedelta

import pytest

from jobqueue.exceptions import Retry, TaskTimeout


@pytest.mark.parametrize(
    ("after", "seconds"), [(None, None), (3, 3.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (-5, 0.0)]
)
def test_retry_waits_in_seconds(after: float | timedelta | None, seconds: float | None) -> None:
    assert Retry(after=after).after == seconds


@pytest.mark.parametrize("after", [float("nan"), float("inf")])
def test_retry_refuses_what_is_no_time(after: float) -> None:
    with pytest.raises(ValueError, match="Retry"):
        Retry(after=after)


def test_an_interruption_without_a_message_says_what_it_is() -> None:
    assert str(TaskTimeout()) == "The task ran longer than its timeout."

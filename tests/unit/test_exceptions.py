from datetime import timedelta

import pytest

from jobqueue.exceptions import Retry, TaskTimeout


@pytest.mark.parametrize(
    ("after", "seconds"), [(None, None), (3, 3.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (-5, 0.0)]
)
def test_retry_converts_wait_to_seconds(after: float | timedelta | None, seconds: float | None) -> None:
    assert Retry(after=after).after == seconds


@pytest.mark.parametrize("after", [float("nan"), float("inf")])
def test_retry_refuses_nan_and_infinity(after: float) -> None:
    with pytest.raises(ValueError, match="Retry"):
        Retry(after=after)


def test_task_timeout_has_default_message() -> None:
    assert str(TaskTimeout()) == "The task ran longer than its timeout."

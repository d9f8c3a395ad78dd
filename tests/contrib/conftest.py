"""The tests of contrib/."""

from collections.abc import Iterator

import pytest

from tests.contrib import celery_tasks


@pytest.fixture(autouse=True)
def fresh_calls() -> Iterator[None]:
    celery_tasks.calls.clear()
    yield
    celery_tasks.calls.clear()

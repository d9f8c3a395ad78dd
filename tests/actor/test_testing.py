"""jobqueue.testing: running tasks in a test's own transaction."""

from __future__ import annotations

import pytest

from jobqueue import testing
from tests import actors
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestRunUntilIdle:
    def test_actors_and_their_children_run_to_their_end(self, stage: Stage) -> None:
        result = actors.Fibonacci.enqueue(7)

        testing.run_until_idle()

        result.refresh()
        assert result.return_value == 13

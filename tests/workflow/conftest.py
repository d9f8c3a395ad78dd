"""Each test of this package runs on both databases, in a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.actor.conftest import database as database
from tests.actor.stage import parts
from tests.workflow.stage import WorkflowStage, bodies


@pytest.fixture
def stage(database: str, db: None) -> Iterator[WorkflowStage]:
    """Return a stage on each database."""
    yield WorkflowStage(database)
    bodies.clear()
    parts.clear()

"""Each test of this package runs on both databases, in a transaction that is rolled back."""

from tests.actor.conftest import database, stage

__all__ = ["database", "stage"]

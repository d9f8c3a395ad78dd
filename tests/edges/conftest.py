"""What the edges' tests have in common."""

import pytest
from django.test import Client

from tests.http import Shop


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side are told the width of the terminal; what is written to a pipe is as wide as it is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def shop(client: Client) -> Shop:
    """A program or a person that calls the queue over HTTP."""
    return Shop(client)

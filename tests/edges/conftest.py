"""What the edges' tests have in common."""

import pytest


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side are told the width of the terminal; what is written to a pipe is as wide as it is."""
    monkeypatch.delenv("COLUMNS", raising=False)

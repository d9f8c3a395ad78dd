"""A SIGTERM before the executor has its handlers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from jobqueue.apps import accept_early_stop


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("pid", "command", "is_accepted"),
    [(1, "run_executors", True), (2, "run_executors", False), (1, "runserver", False)],
)
def test_sigterm_during_the_imports_ends_an_executor_that_is_process_1(
    monkeypatch: pytest.MonkeyPatch, pid: int, command: str, is_accepted: bool
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(sys, "argv", ["manage.py", command])

    accept_early_stop()

    handler = signal.getsignal(signal.SIGTERM)
    assert callable(handler) is is_accepted
    if callable(handler):
        handler(signal.SIGTERM, None)
        assert ends == [143]


def test_handler_of_the_site_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["manage.py", "run_executors"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    accept_early_stop()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

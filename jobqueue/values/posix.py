"""Modules that only POSIX systems have. Only executors need them: the rest of the package works on Windows, too."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

# What executors use of each module, and another system may lack.
NEEDED = {
    os: ("fork", "register_at_fork", "set_blocking"),
    select: ("poll",),
    signal: ("SIGHUP", "SIGQUIT", "SIGTSTP", "SIGCONT", "SIGUSR1", "SIGCHLD", "pthread_sigmask"),
}


def missing() -> list[str]:
    """Return the functions that executors need and this system lacks, such as "signal.SIGHUP"."""
    return [
        f"{module.__name__}.{name}" for module, names in NEEDED.items() for name in names if not hasattr(module, name)
    ]


def at_fork(**callbacks: Callable[[], object]) -> None:
    """Call os.register_at_fork(), where processes can fork."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**callbacks)


def signals(*names: str) -> frozenset[signal.Signals]:
    """Return those of the signals that this system has."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))

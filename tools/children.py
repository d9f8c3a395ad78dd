"""Setup of child processes, for `preexec_fn`. Does not import Django."""

import ctypes
import signal
import sys

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """Ask Linux to send this child a signal when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, by)

"""Keep descriptors 0 to 2 open. A body may close them, and the next socket must not get their numbers."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TextIO

LAST_STANDARD_STREAM = 2
FIRST_NUMBER = 64  # of our copy; usually above the numbers of connections and pipes


def copy_of_stderr() -> TextIO:
    """Return a copy of stderr that stays open when stderr is closed, or stderr itself if it is not a file."""
    try:
        number = fcntl.fcntl(sys.stderr.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_NUMBER)
    except (OSError, ValueError, AttributeError):  # replaced by an object, or closed
        return sys.stderr
    return open(number, "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)


def fill_standard_streams() -> None:
    """
    Open /dev/null in place of each standard stream that is closed.

    Otherwise the site's output could be written into a database connection.
    """
    for number in range(LAST_STANDARD_STREAM + 1):
        try:
            os.get_inheritable(number)  # keeps Python's lock, which fcntl.fcntl() and os.fstat() release
        except OSError:
            fill(number)


def fill(number: int) -> None:
    try:
        opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, unless another thread is faster
    except OSError:  # too many files are open
        return
    if opened == number:
        os.set_inheritable(number, True)
    else:
        os.close(opened)

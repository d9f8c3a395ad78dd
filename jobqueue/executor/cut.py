"""Take the network away from a connection that another thread waits on."""

from __future__ import annotations

import os
import socket
from typing import Any


def cut_off(raw: Any) -> None:
    """
    Let whatever its owner does with a connection fail, now and from here on; it is the owner's to close.

    Were it closed from here, libpq would free what the owner's call goes on with, when an answer comes or the number of
    the file belongs to the next connection: the process ends, with a corrupt heap. Raises what the driver raises for a
    connection that is closed, AttributeError for one that has no socket.
    """
    number = raw.fileno()
    with socket.socket(fileno=os.dup(number)) as line:
        if raw.fileno() == number:  # else it was closed in between, and this may be another's socket
            line.shutdown(socket.SHUT_RDWR)

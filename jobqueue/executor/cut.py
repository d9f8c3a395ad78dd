"""Take the network away from a connection that another thread waits on."""

from __future__ import annotations

import os
import socket
from typing import Any


def cut_off(raw: Any) -> None:
    """
    Let whatever its owner does with a connection fail, now and from here on; it is the owner's to close.

    Were it closed from here, libpq would free what the owner's call goes on with, when an answer comes or the number of
    the file belongs to the next connection: the process ends, with a corrupt heap. One without a socket, SQLite's, may
    be closed from any thread. Raises what the driver raises for a connection that is closed already; OSError.
    """
    if not hasattr(raw, "fileno"):
        raw.close()
        return
    number = raw.fileno()
    copy = os.dup(number)
    try:
        line = socket.socket(fileno=copy)
    except OSError:  # no socket: closed meanwhile, and the number given away
        os.close(copy)
        raise
    with line:
        if raw.fileno() == number:  # else this may be another's
            line.shutdown(socket.SHUT_RDWR)

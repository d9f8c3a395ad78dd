"""How a child tells its supervisor that it ends of its own accord: a body may use the same exit codes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

MOST_BYTES = 64
VARIABLE = "JOBQUEUE_FAREWELL"  # for a child that is another program: where to write


class Farewell:
    """
    A pipe for some bytes: the exit code with which the executor itself, and not what it runs, ends a process.

    Before that a child may say what is to be known of it however it ends.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    def say(self, code: int) -> None:
        """In a forked child; the last one right before its end."""
        write(self._writer, code)

    def to_program(self) -> dict[str, str]:
        """Give what the environment of a child must hold that is another program."""
        os.set_inheritable(self._writer, True)
        return {VARIABLE: str(self._writer)}

    def hand_over(self) -> None:
        """In the parent, once the child is started."""
        os.close(self._writer)

    def was(self, code: int) -> bool:
        """In the parent, once the child has ended: whether it said this code itself, in the end."""
        return list(self.hear()[-1:]) == [code]

    def hear(self) -> bytes:
        """In the parent, once the child has ended: give all that it said."""
        said = b""
        with contextlib.suppress(BlockingIOError):  # what the body started lives on, and holds the other end
            said = os.read(self._reader, MOST_BYTES)
        self.close()
        return said

    def close(self) -> None:
        os.close(self._reader)


def receive() -> Callable[[int], None]:
    """In a program: give what tells the supervisor the exit code, where there is one. Bodies do not inherit it."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return lambda code: None
    os.set_inheritable(int(given), False)
    return lambda code: write(int(given), code)


def write(writer: int, code: int) -> None:
    os.write(writer, bytes([code]))

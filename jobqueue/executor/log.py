"""The executor's logger. It never raises, even if the site's logging does."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import Any


class ExecutorLogger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger that prints errors of logging instead of raising them.

    An error of the site's filter or record factory would otherwise reach the caller. The callers are threads that the
    process depends on. A log line must neither end them nor fail a task.
    """

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(level):
            try:
                self.logger.log(level, msg, *args, stacklevel=stacklevel + 1, **kwargs)
            except Exception as error:  # noqa: BLE001 - code of the site's may raise anything
                complain(f"--- Logging error in {self.logger.name}, the line was {msg!r} {args!r:.1000}", error)


def complain(text: str, error: Exception) -> None:
    """Print an error of logging, as logging.Handler.handleError() does."""
    if logging.raiseExceptions and sys.stderr is not None:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{text}\n{''.join(traceback.format_exception(error))}")


logger = ExecutorLogger(logging.getLogger("jobqueue.executor"))

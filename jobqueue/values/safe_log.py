"""A logger for code that must go on, whatever the site's handlers and filters raise."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from jobqueue.exceptions import Interrupted


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger that prints errors of logging instead of raising them.

    An error of the site's handler, filter or record factory would otherwise end a thread of the executor, undo its
    transaction, or fail a task.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)
        self.isEnabledFor = logger.isEnabledFor  # type: ignore[method-assign]  # asked twice for each task

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(level):
            try:
                self.logger.log(level, msg, *args, stacklevel=stacklevel + 1, **kwargs)
            except (Interrupted, KeyboardInterrupt):
                raise
            except BaseException:  # noqa: BLE001 - the site's code may raise anything
                self.print_error(level, msg, args)

    def print_error(self, level: int, msg: object, args: tuple[object, ...]) -> None:
        with contextlib.suppress(Exception):
            logging.Handler().handleError(logging.LogRecord(self.logger.name, level, "", 0, msg, args, None))


def safe_logger(name: str) -> SafeLogger:
    """Return the logger of a module that executors run in their loop."""
    return SafeLogger(logging.getLogger(name))

"""The executor's loggers. They never raise, even if the site's logging does."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from jobqueue.executor.telemetry.redaction_filter import RedactionFilter


class ExecutorLogger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger that prints errors of logging instead of raising them.

    An error of the site's filter or record factory would otherwise end a thread of the executor or fail a task.
    """

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(level):
            try:
                self.logger.log(level, msg, *args, stacklevel=stacklevel + 1, **kwargs)
            except Exception:  # noqa: BLE001 - the site's code may raise anything
                self._print_error(level, msg, args)

    def log_quickly(self, level: int, msg: str, args: tuple[object, ...], extra: Mapping[str, Any]) -> None:
        """Log a line for each task as log() does, in half the time because the calling line is not looked up."""
        try:
            record = logging.getLogRecordFactory()(self.logger.name, level, __file__, 0, msg, args, None)
            record.__dict__.update(extra)
            self.logger.handle(record)
        except Exception:  # noqa: BLE001 - as above
            self._print_error(level, msg, args)

    def _print_error(self, level: int, msg: object, args: tuple[object, ...]) -> None:
        with contextlib.suppress(Exception):
            logging.Handler().handleError(logging.LogRecord(self.logger.name, level, "", 0, msg, args, None))


def get_logger(name: str) -> ExecutorLogger:
    """Return the logger of a module of the executor."""
    logger = logging.getLogger(name)
    logger.addFilter(RedactionFilter())
    return ExecutorLogger(logger)

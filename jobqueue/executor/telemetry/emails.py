"""Mails about failures: none unless the site's LOGGING asks for them, and then few."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from django.utils.log import AdminEmailHandler

from jobqueue.conf.compat import PACKAGE

QUIET_SECONDS = 3600.0  # after a mail about a task
MAX_NAMES = 1000


def limit_emails(undo: ExitStack) -> None:
    """
    Silence Django's own line about each failure, and let handlers that mail to ADMINS send few.

    The line has no more than the task's id, and Django's default LOGGING mails each. A site that configures its logger
    gets it nevertheless. undo: gets what restores the loggers.
    """
    framework = logging.getLogger(PACKAGE)
    if framework.level == logging.NOTSET and not framework.handlers:
        framework.setLevel(logging.CRITICAL)
        undo.callback(framework.setLevel, logging.NOTSET)
    loggers = (logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger))
    ours = (logger for logger in loggers if logger.name.partition(".")[0] == "jobqueue")
    handlers = {handler for logger in (logging.root, *ours) for handler in logger.handlers}
    for handler in handlers:
        if isinstance(handler, AdminEmailHandler):
            one_an_hour = OneEmailAnHour()
            handler.addFilter(one_an_hour)
            undo.callback(handler.removeFilter, one_an_hour)


class OneEmailAnHour(logging.Filter):
    """Accepts one record an hour about the same task, and all that are about none."""

    def __init__(self) -> None:
        super().__init__()
        self._mailed_at: dict[str, float] = {}  # by the task's name

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(task := record.__dict__.get("task"), str):
            return True
        now = time.monotonic()
        if now - self._mailed_at.get(task, -QUIET_SECONDS) < QUIET_SECONDS:
            return False
        if len(self._mailed_at) >= MAX_NAMES:  # names may come from outside
            self._mailed_at.clear()
        self._mailed_at[task] = now
        return True

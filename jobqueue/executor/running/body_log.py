"""The handler on the root logger that keeps what bodies log, to show it on the pages of their tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jobqueue.executor.running.attempt import ExecutorIdentity, RunningTask, running_here
from jobqueue.executor.telemetry.errors import first_line_of
from jobqueue.executor.telemetry.logger import mask_for
from jobqueue.values.body_log import MESSAGE_CHARACTERS, NAME_CHARACTERS
from jobqueue.values.text import printable

OURS = "jobqueue"  # and the loggers below it


class BodyLogHandler(logging.Handler):
    """Keeps what the bodies of one executor log at INFO or above."""

    def __init__(self, identity: ExecutorIdentity) -> None:
        super().__init__(logging.INFO)
        self._identity = identity

    def handle(self, record: logging.LogRecord) -> bool:
        """
        Keep a record of a body. Raises nothing but an interruption of the body.

        Takes no lock, unlike the method of the base class: an interruption may arrive at any line here.
        """
        running = running_here.get()
        if running is not None and self._is_of_body(running) and record.name.partition(".")[0] != OURS:
            with suppress(Exception):  # a record may hold anything
                level, logger = printable(record.levelname), printable(record.name)
                running.keep_line(level[:NAME_CHARACTERS], logger[:NAME_CHARACTERS], line_of(record, running))
        if logging.root.handlers == [self]:
            handle_as_without(self, record)
        return True

    def _is_of_body(self, running: RunningTask) -> bool:
        """Whether the calling code is a body. Before its start, it is a receiver of task_started."""
        return running.identity is self._identity and running.started_at is not None


def line_of(record: logging.LogRecord, running: RunningTask) -> str:
    """Return the message of a record, and its exception, as one line."""
    message = message_of(record)
    if record.exc_info and (error := record.exc_info[1]) is not None:
        message = f"{message} {first_line_of(error)}".lstrip()
    if len(message) > MESSAGE_CHARACTERS:  # half a secret would not be found when the line is shown
        message = mask_for(running.claimed, running.identity.options)(message)[:MESSAGE_CHARACTERS]
    return printable(message)[:MESSAGE_CHARACTERS]


def message_of(record: logging.LogRecord) -> str:
    """Return the message; without its arguments, if they do not fit. Other handlers report their error."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - the arguments may raise anything
        return str(record.msg)


def handle_as_without(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Print a record where the site has no handler for it, as Python does if there is none at all."""
    logger = logging.root.manager.loggerDict.get(record.name)
    while isinstance(logger, logging.Logger):
        if any(other is not handler for other in logger.handlers):
            return
        logger = logger.parent
    if (last := logging.lastResort) is not None and record.levelno >= last.level:
        last.handle(record)


@contextmanager
def keeping_body_logs(identity: ExecutorIdentity) -> Iterator[None]:
    """Keep what the bodies of an executor log, unless KEEP_LOG_LINES is 0."""
    if not identity.options.keep_log_lines:
        yield
        return
    handler = BodyLogHandler(identity)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)

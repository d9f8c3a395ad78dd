"""The handler on the root logger that keeps what bodies log, to show it on the pages of their tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jobqueue.body_log import MESSAGE_CHARACTERS, NAME_CHARACTERS, LogLine
from jobqueue.executor.running.attempt import ExecutorIdentity, RunningTask, running_here
from jobqueue.executor.telemetry.errors import Mask, first_line_of
from jobqueue.executor.telemetry.logger import mask_for
from jobqueue.printable import printable

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
                running.keep_line(line_of(record, running))
        if logging.root.handlers == [self]:
            handle_as_without(self, record)
        return True

    def _is_of_body(self, running: RunningTask) -> bool:
        """Whether the calling code is a body. Before its start, it is a receiver of task_started."""
        return running.identity is self._identity and running.started_at is not None


def line_of(record: logging.LogRecord, running: RunningTask) -> LogLine:
    """Return a record as one line."""
    mask = mask_for(running.claimed, running.identity.options)
    message = _cut(message_of(record), mask)
    if record.exc_info and (error := record.exc_info[1]) is not None:
        message = _cut(f"{message} {first_line_of(error)}".lstrip(), mask)
    return LogLine(
        at=round(running.now().timestamp(), 3),
        level=printable(record.levelname[:NAME_CHARACTERS]),
        logger=printable(record.name[:NAME_CHARACTERS]),
        message=message,
    )


def message_of(record: logging.LogRecord) -> str:
    """Return the message; without its arguments, if they do not fit. Other handlers report their error."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - the arguments may raise anything
        return str(record.msg)


def _cut(text: str, mask: Mask) -> str:
    """Cut a text. Half a secret would not be found when it is shown, so only secrets in a long text are masked here."""
    if len(text) > MESSAGE_CHARACTERS:
        text = mask(text)[:MESSAGE_CHARACTERS]
    return printable(text)[:MESSAGE_CHARACTERS]


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

"""
What an executor logs of a task, without what REDACT names: our own lines, and Django's that print its exception.

Those are its receiver of task_finished, receivers that raise (while the task's own exception is being handled), and
robust hooks of on_commit().
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from jobqueue import registry
from jobqueue.compat import PACKAGE
from jobqueue.executor.errors import Mask, message_of, name_of, path_of, printed
from jobqueue.executor.log import logger
from jobqueue.executor.run import Worker
from jobqueue.printable import printable_lines
from jobqueue.records import ClaimedTask, NewTask
from jobqueue.redact import Secrets, argument_secrets, redact_text
from jobqueue.serialization.json import decode

OF_DJANGO = (PACKAGE, "django.dispatch", "django.db.backends.base")

# Whose task this thread, or coroutine, is at.
subject: ContextVar[tuple[ClaimedTask | NewTask, Worker] | None] = ContextVar("jobqueue.subject", default=None)


@contextmanager
def telling_of(claimed: ClaimedTask | NewTask, worker: Worker) -> Iterator[None]:
    """Mask meanwhile what Django logs; where every task passes, set `subject` itself, which is quicker."""
    before = subject.set((claimed, worker))
    try:
        yield
    finally:
        subject.reset(before)


def mask_of(claimed: ClaimedTask | NewTask, worker: Worker) -> Mask:
    """Give what masks a text about a task: what REDACT names, and the arguments that it names."""
    patterns = worker.options.redact
    secrets = secrets_of(claimed.task_type, claimed.args, claimed.kwargs, patterns)
    return lambda text: redact_text(text, patterns, secrets)


@lru_cache(maxsize=1)  # consecutive lines are often about one task
def secrets_of(task_type: str, args_text: str, kwargs_text: str, patterns: tuple[str, ...]) -> Secrets:
    """Return the masked arguments of a task."""
    try:
        args, kwargs = decode(args_text), decode(kwargs_text)
    except (ValueError, RecursionError):  # nor could its body be given them
        args, kwargs = [], {}
    return argument_secrets(registry.parameters(task_type), args, kwargs, patterns)


def watch_django() -> None:
    """Mask from now on what Django's loggers tell of the task that a thread is at."""
    for name in OF_DJANGO:
        logging.getLogger(name).addFilter(mask_record)


def mask_record(record: logging.LogRecord) -> bool:
    """
    Mask the message and the traceback of a line of the log; one that holds no secret stays as it is.

    Lines without an exception name the task and its state alone. Nothing is raised: whoever logs goes on.
    """
    if (at := subject.get()) is None or not record.exc_info:
        return True
    try:
        _mask(record, record.exc_info[1], mask_of(*at))
    except BaseException as failure:  # noqa: BLE001 - there may be no memory left
        record.msg, record.args = f"<what failed here cannot be masked: {name_of(failure)}>", None
        record.exc_info = record.exc_text = None
    return True


def _mask(record: logging.LogRecord, error: BaseException | None, mask: Mask) -> None:
    said = message_in(record)
    if (shown := mask(said)) != said:
        record.msg, record.args = shown, None
    if error is not None and (shown := mask(text := printed(error))) != text:
        stand_in = masked_error(error, mask)
        record.exc_info = type(stand_in), stand_in, stand_in.__traceback__
        record.exc_text = shown.rstrip("\n")  # with the chain of causes, for those who print texts
    if error is not None and (lines := printable_lines(shown)) != shown:
        record.exc_text = lines.rstrip("\n")


def message_in(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except BaseException:  # noqa: BLE001 - a __str__ of the user's may raise anything; nobody else can print it either
        return ""


def masked_error(error: BaseException, mask: Mask) -> BaseException:
    """
    Give what looks like an exception whose text is masked: its class's name, its frames, not its causes.

    For tools that read exceptions, such as mails to ADMINS, and would do without any otherwise.
    """
    module, _, name = path_of(error).rpartition(".")
    kind = type(name, (Exception,), {"__module__": module})
    stand_in: BaseException = kind(message_of(error, mask)).with_traceback(error.__traceback__)
    return stand_in


def log_failure(line: str, *args: object) -> None:
    """Log the exception that is being handled, and do without its traceback where that cannot be printed."""
    error, at = sys.exception(), subject.get()
    try:
        if error is not None and at is not None:
            mask, text = mask_of(*at), printed(error)
            error = error if mask(text) == text else masked_error(error, mask)
        logger.error(line, *args, exc_info=error)
    except BaseException as failure:  # noqa: BLE001 - a class of the user's may raise anything when it is printed
        logger.error(f"{line} <its traceback cannot be read: %s>", *args, name_of(failure))

"""The executor's loggers: they never raise, and they mask what REDACT names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any

from jobqueue.conf.options import Options
from jobqueue.declarations import registry
from jobqueue.exceptions import Interrupted
from jobqueue.executor.telemetry.errors import Mask, full_traceback, name_of
from jobqueue.values.json import decode
from jobqueue.values.records import ClaimedTask, NewTask
from jobqueue.values.redaction import Secrets, argument_secrets, redact_text
from jobqueue.values.safe_log import SafeLogger
from jobqueue.values.text import printable_lines


class ExecutorLogger(SafeLogger):
    """A safe logger that is also quick: executors log a line for each task."""

    def log_quickly(self, level: int, msg: str, args: tuple[object, ...], extra: Mapping[str, Any]) -> None:
        """Log a line for each task as log() does, in half the time because the calling line is not looked up."""
        try:
            record = logging.getLogRecordFactory()(self.logger.name, level, __file__, 0, msg, args, None)
            record.__dict__.update(extra)
            self.logger.handle(record)
        except (Interrupted, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: BLE001 - the site's code may raise anything
            self.print_error(level, msg, args)

    def only_handler(self) -> logging.Handler | None:
        """
        Return the only handler of this logger, or None if anything else may see its records.

        Without anything else, lines can be written without records. Error trackers see records through a filter, a
        record factory, or a method that they have replaced.
        """
        logger: logging.Logger | None = self.logger
        handlers: list[logging.Handler] = []
        while logger is not None:
            handlers += logger.handlers
            logger = logger.parent if logger.propagate else None
        is_plain = (
            len(handlers) == 1
            and not handlers[0].filters
            and len(self.logger.filters) == 1  # ours
            and logging.getLogRecordFactory() is logging.LogRecord
            and all(is_of_logging(getattr(self.logger, name)) for name in ("handle", "filter", "callHandlers"))
        )
        return handlers[0] if is_plain else None


def is_of_logging(method: Any) -> bool:
    """Return whether a method of a logger is that of Python's `logging`."""
    function = method.__func__ if type(method) is MethodType else None
    return type(function) is FunctionType and function.__globals__ is vars(logging)


def get_logger(name: str) -> ExecutorLogger:
    """Return the logger of a module of the executor."""
    logger = logging.getLogger(name)
    logger.addFilter(RedactionFilter())
    return ExecutorLogger(logger)


class RedactionFilter(logging.Filter):
    """
    Render the traceback of a record, masked by the function in its `extra` under "mask".

    An exception that quotes a secret leaves the record. Tools that read exceptions, such as error trackers, get none.
    Rendering here, and not in a handler, also catches classes that raise when they are printed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        mask: Mask = record.__dict__.pop("mask", str)
        if record.exc_info and (error := record.exc_info[1]) is not None:
            try:
                text = full_traceback(error)
                masked = mask(text)
                record.exc_text = printable_lines(masked).rstrip("\n")
                if masked != text:
                    record.exc_info = None
            except BaseException as failure:  # noqa: BLE001 - there may be no memory left
                record.exc_info, record.exc_text = None, f"<the traceback cannot be masked: {name_of(failure)}>"
        return True


def mask_for(task: ClaimedTask | NewTask, options: Options) -> Mask:
    """Return a function that masks a text about a task: what REDACT names, and the arguments that it names."""
    patterns = options.redact

    def mask(text: str) -> str:
        return redact_text(text, patterns, _find_secrets(task.task_type, task.args, task.kwargs, patterns))

    return mask


@lru_cache(maxsize=1)  # consecutive texts are often about one task
def _find_secrets(task_type: str, args_text: str, kwargs_text: str, patterns: tuple[str, ...]) -> Secrets:
    """Return the masked arguments of a task."""
    try:
        args, kwargs = decode(args_text), decode(kwargs_text)
    except (ValueError, RecursionError):  # the task could not start either
        args, kwargs = [], {}
    return argument_secrets(registry.parameters(task_type), args, kwargs, patterns)

"""The loggers of tasks. Lines of a body are shown on its task's page, whatever its logger is called."""

from logging import Logger, getLogger


def get_task_logger(name: str) -> Logger:
    """Return the logger of a module with tasks."""
    return getLogger(name)


get_logger = get_task_logger

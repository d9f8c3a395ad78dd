"""
Celery's helpers.

* `log`: the loggers of tasks
"""

from uuid import uuid4


def uuid() -> str:
    """Return a new id."""
    return str(uuid4())

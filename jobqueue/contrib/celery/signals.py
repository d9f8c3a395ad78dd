"""Celery's signals about tasks. Their senders are tasks. Errors of receivers are logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.dispatch import Signal as DjangoSignal

from jobqueue.contrib.celery.exceptions import refuse


class Signal(DjangoSignal):
    """A signal whose connect() is a decorator, too, with or without arguments."""

    def connect(  # type: ignore[override]
        self, *receivers: Callable[..., Any], sender: Any = None, weak: bool = True, **options: Any
    ) -> Any:
        """Connect a receiver, and return it."""

        def add(receiver: Callable[..., Any]) -> Callable[..., Any]:
            super(Signal, self).connect(receiver, sender, weak, **options)
            return receiver

        return add(receivers[0]) if receivers else add

    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Call the receivers. An error of one does not reach the task."""
        return self.send_robust(sender, **named) if self.receivers else []


task_prerun, task_postrun, task_success = Signal(), Signal(), Signal()
task_failure, task_retry = Signal(), Signal()


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise refuse(f"The signal {name}", "Use task_enqueued, task_started and task_finished of django.tasks.")

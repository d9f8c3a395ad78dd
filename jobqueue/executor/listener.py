"""The listener thread: PostgreSQL's notifications. They only save time, because polling finds the work, too."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from uuid import uuid4

import psycopg
from django.db import connections

from jobqueue.api.notifications import ADMIT_NOTIFICATION, AWAIT_NOTIFICATION, CANCEL_NOTIFICATION, END_NOTIFICATION
from jobqueue.engine import Engine, notify_from_elsewhere, statement
from jobqueue.executor.database.connection import DatabaseState, ReconnectBackoff, discard_connection
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

PROBE_CHECKS = 3  # without any notification: the connection delivers none
CHECK_SECONDS = 1.0  # how soon stop() is noticed
PROBE = "!probe-"  # in place of a queue's name: a listener checks whether its own notification arrives
WAKE_NOTIFICATION = "!wake"  # in place of a queue's name: jobqueue_send_to_task() in SQL has sent a message


class Listener(threading.Thread):
    """
    Passes on notifications. An error in this thread does not end the executor.

    on_queue: called with the name of a queue that has work. on_cancel: a running task is to be cancelled.
    on_admit: called with the name of a queue with a BLOCKED task that may run now. on_missed: notifications may have
    been missed, or a task has a message. on_awaited: called with the id of a task for whose end a process waits. While
    another thread has no connection, the listener closes its own, because it may be the last one that the server gives.
    """

    def __init__(
        self,
        engine: Engine,
        on_queue: Callable[[str], None],
        on_cancel: Callable[[], None],
        on_admit: Callable[[str], None],
        on_missed: Callable[[], None],
        database_state: DatabaseState,
        on_awaited: Callable[[str], None],
    ) -> None:
        super().__init__(name="listener", daemon=True)
        self._engine = engine
        self._on_queue, self._on_cancel, self._on_admit = on_queue, on_cancel, on_admit
        self._on_missed, self._on_awaited = on_missed, on_awaited
        self._database_state = database_state
        self._is_stopping = threading.Event()
        self._prefix = f"{engine.alias} "
        self._probe = f"{PROBE}{uuid4()}"
        self.is_listening = False

    def run(self) -> None:
        backoff = ReconnectBackoff()
        can_listen = True
        while can_listen and not self._is_stopping.is_set():
            if self._database_state.is_unreachable:
                self.is_listening = False
                self._is_stopping.wait(CHECK_SECONDS)
                continue
            wrapper = connections[self._engine.database]
            try:
                wrapper.ensure_connection()
                can_listen = self._listen(wrapper.connection)
            except Exception as error:  # noqa: BLE001 - polling goes on
                if self.is_listening:
                    backoff.reset()
                    logger.info("listener.disconnected error=%s", format_first_line(error))
                self.is_listening = False
                self._is_stopping.wait(backoff.next_seconds())
            finally:
                discard_connection(wrapper)

    def _listen(self, connection: psycopg.Connection[object]) -> bool:
        """Pass notifications on until stop(), or until the connection breaks. Return False if none can arrive."""
        connection.autocommit = True
        # psycopg's own statement: a channel's name cannot be a parameter.
        connection.execute(statement("listen"))
        # A pooler in transaction mode accepts LISTEN and delivers nothing.
        notify_from_elsewhere(self._engine.database, f"{self._prefix}{self._probe}")
        self._on_missed()
        quiet_checks = 0  # no clock: a process that was frozen for seconds has not listened in that time
        incoming = select.poll()  # psycopg's own wait wakes up ten times a second
        incoming.register(connection.fileno(), select.POLLIN)
        while not self._is_stopping.is_set() and not self._database_state.is_unreachable:
            if incoming.poll(1000 * CHECK_SECONDS):
                for notification in connection.notifies(timeout=0.0):
                    self._pass_on(notification.payload)
                continue
            quiet_checks += 1
            if not self.is_listening and quiet_checks >= PROBE_CHECKS:
                logger.warning(
                    "listener.disabled poll_interval_s=%.1f hint=LISTEN does not work, perhaps because of a pooler.",
                    self._engine.options.poll_interval,
                )
                return False
        return True

    def _pass_on(self, payload: str) -> None:
        if not payload.startswith(self._prefix):
            return
        match payload.removeprefix(self._prefix):
            case self._probe:
                self.is_listening = True
            case name if name == CANCEL_NOTIFICATION:
                self._on_cancel()
            case name if name.startswith(ADMIT_NOTIFICATION):
                self._on_admit(name.removeprefix(ADMIT_NOTIFICATION))
            case name if name == WAKE_NOTIFICATION:
                self._on_missed()
            case name if name.startswith(AWAIT_NOTIFICATION):
                self._on_awaited(name.removeprefix(AWAIT_NOTIFICATION))
            case name if not name.startswith((PROBE, END_NOTIFICATION)):
                self._on_queue(name)

    def stop(self) -> None:
        self._is_stopping.set()

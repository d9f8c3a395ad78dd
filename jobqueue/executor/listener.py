"""LISTEN: notices that there is work, as a hint; polling finds it without."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import psycopg
from django.db import connections

from jobqueue.api.notifications import CANCEL_NOTIFICATION
from jobqueue.engine.base import Engine
from jobqueue.engine.statements import notify_from_elsewhere, statement
from jobqueue.executor.outage import Outage, Patience, drop
from jobqueue.executor.telemetry.errors import first_line_of
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

PROBE_SECONDS = 3.0
LOOK_UP_SECONDS = 1.0  # between looks whether to stop
PROBE = "!probe-"  # in place of a queue's name: who has sent it hears whether notices come
WAKE_NOTICE = "!wake"  # in place of a queue's name: jobqueue_send_to_task() in SQL has sent a message


class Listener(threading.Thread):
    """
    Passes on notices: the name of a queue that has work, or that a running task is to be cancelled.

    on_anything: notices may have been missed, or some task has mail. What goes wrong here ends no executor:
    polling finds the work. outage: of those who cannot do without a connection; while one has none, we have none, for
    this one may be the last that the server gives.
    """

    def __init__(
        self,
        engine: Engine,
        on_queue: Callable[[str], None],
        on_cancel: Callable[[], None],
        on_anything: Callable[[], None],
        outage: Outage,
    ) -> None:
        super().__init__(name="listener", daemon=True)
        self._engine = engine
        self._on_queue, self._on_cancel, self._on_anything = on_queue, on_cancel, on_anything
        self._outage = outage
        self._over = threading.Event()
        self._prefix = f"{engine.alias} "
        self._probe = f"{PROBE}{uuid4()}"
        self.is_listening = False

    def run(self) -> None:
        patience = Patience()
        is_useless = False
        while not self._over.is_set() and not is_useless:
            if self._outage.is_on:
                self.is_listening = False
                self._over.wait(LOOK_UP_SECONDS)
                continue
            wrapper = connections[self._engine.database]
            try:
                wrapper.ensure_connection()
                is_useless = not self._listen(wrapper.connection)
            except Exception as error:  # noqa: BLE001 - whatever it is, we can do without
                if self.is_listening:
                    patience.reset()
                    logger.info("listener.disconnected error=%s", first_line_of(error))
                self.is_listening = False
                self._over.wait(patience.next_seconds())
            finally:
                drop(wrapper)

    def _listen(self, connection: psycopg.Connection[object]) -> bool:
        """Pass notices on until we are to stop, or the connection breaks; returns False when notices do not come."""
        connection.autocommit = True
        # psycopg's own statement: a channel's name cannot be a parameter.
        connection.execute(statement("listen"))
        # A transaction pooler takes LISTEN without a word and delivers nothing.
        notify_from_elsewhere(self._engine.database, f"{self._prefix}{self._probe}")
        self._on_anything()
        since = time.monotonic()
        incoming = select.poll()  # psycopg looks ten times a second whether somebody has pressed Ctrl-C
        incoming.register(connection.fileno(), select.POLLIN)
        while not self._over.is_set() and not self._outage.is_on:
            if incoming.poll(1000 * LOOK_UP_SECONDS):
                for notice in connection.notifies(timeout=0.0):
                    self._pass_on(notice.payload)
            if not self.is_listening and time.monotonic() - since > PROBE_SECONDS:
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
            case name if name == WAKE_NOTICE:
                self._on_anything()
            case name if not name.startswith(PROBE):
                self._on_queue(name)

    def stop(self) -> None:
        self._over.set()

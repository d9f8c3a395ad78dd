"""The check of `doctor` that opens a connection and may wait for seconds."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

from django.core import checks
from django.db import DatabaseError, connections

from jobqueue.engine import Engine, notify_from_elsewhere, statement
from jobqueue.management.cli.console import first_line

PROBE_SECONDS = 3.0


def notification_findings(engine: Engine) -> Iterator[checks.CheckMessage]:
    """Send a notification. A pooler in transaction mode accepts LISTEN and delivers nothing."""
    from psycopg import Error

    here, probe = f"Backend {engine.alias}", f"{engine.alias} !doctor-{uuid4()}"
    wrapper = connections[engine.database].copy()
    wrapper.settings_dict["OPTIONS"].pop("pool", None)  # a connection that listens must not return to the pool
    try:
        wrapper.ensure_connection()
        connection = wrapper.connection
        connection.autocommit = True
        connection.execute(statement("listen"))
        notify_from_elsewhere(engine.database, probe)
        heard = any(notification.payload == probe for notification in connection.notifies(timeout=PROBE_SECONDS))
    except (DatabaseError, Error) as error:
        text = f"{here}: LISTEN could not be tested: {first_line(error)}"
        yield checks.Warning(text, hint="Check that connections are left.")
        return
    finally:
        wrapper.close()
    if heard:
        yield checks.Info(f"{here}: LISTEN/NOTIFY works: tasks start immediately.")
    else:
        poll = f"executors poll every {engine.options.poll_interval:g} s"
        yield checks.Warning(
            f"{here}: notifications do not arrive (a pooler in transaction mode?); {poll}.",
            hint="Give executors a direct connection, or set NOTIFY to False.",
        )

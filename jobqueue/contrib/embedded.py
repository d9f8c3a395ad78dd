"""
Run tasks in the process of a web server: on a small host, and while developing.

    application = embedded.start(get_asgi_application())  # in asgi.py; the same line serves in wsgi.py
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import math
import os
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import mail

from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.posix import at_fork, missing

if TYPE_CHECKING:
    from jobqueue.executor.process import ExecutorProcess

logger = get_logger(__name__)

__all__ = ["start", "stop"]

RESTART_SECONDS = 30.0  # before a new executor takes the place of one that has failed
READY_SECONDS = 0.1  # between two looks at a stop, while Django loads the site
END_SECONDS = 10.0  # beyond the shutdown timeout, for an executor to end
SERVERS = ("gunicorn", "uvicorn", "hypercorn", "daphne", "granian", "waitress")

_embedded: dict[str, _Embedded] = {}  # by backend: the executors of this process, and of the fork that it will be


def start(
    application: Any = None,
    *,
    backend: str = "default",
    queues: Sequence[str] | None = None,
    threads: int = 2,
    async_slots: int = 10,
    shutdown_timeout: float = 10.0,
    server: str | None = None,
) -> Any:
    """
    Run an executor in this process until it ends. Return the application, which stops the executor under ASGI.

    The call does nothing if the backend has an executor here, and on a system without POSIX, such as Windows. It does
    nothing in a test, which may import the application before the test database exists: use jobqueue.testing there.
    Under `gunicorn --preload`, the executor starts in each worker.
    queues: None serves every queue. shutdown_timeout: seconds that running tasks get when the server ends. server: the
    server in the executor's name; None: the one that this process runs.
    """
    settings = ExecutorSettings(
        backend=backend,
        queues=None if queues is None else tuple(queues),
        threads=threads,
        async_slots=async_slots,
        shutdown_timeout=shutdown_timeout,
        connect_timeout=math.inf,
        name=f"in-{server or _server()}",
    )
    if lacking := missing():
        logger.warning("executor.unsupported lacks=%s hint=Use WSL or a container to run tasks.", ",".join(lacking))
        return application
    new = _Embedded(settings)
    if not _is_test() and _embedded.setdefault(backend, new) is new and not _is_to_be_forked():
        new.start()
    return _WithLifespan(application) if _is_asgi(application) else application


def stop() -> None:
    """Stop the executors of this process, and wait for them. Their tasks have the time of `shutdown_timeout`."""
    stopping = list(_embedded.values())
    _embedded.clear()
    for embedded in stopping:
        embedded.stop()
    for embedded in stopping:
        embedded.join()


class _Embedded:
    """The executor of one backend, in a thread of its own. It is started again after it has failed."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._thread: threading.Thread | None = None  # None: it waits for the fork
        self._executor: ExecutorProcess | None = None
        self._is_stopping = threading.Event()

    @property
    def has_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="jobqueue-embedded", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not apps.ready_event.wait(READY_SECONDS):  # for ever, if the site cannot be loaded
            if self._is_stopping.is_set():
                return
        from jobqueue.executor.process import ExecutorProcess  # it needs the models

        name = f"{socket.gethostname()}.{os.getpid()}.{self._settings.name}"
        while not self._is_stopping.is_set():
            self._executor = executor = ExecutorProcess(replace(self._settings, name=name), is_guest=True)
            if self._is_stopping.is_set():  # stop() may have found no executor
                executor.stop()
            code = executor.run()
            if self._is_stopping.is_set() or executor.health.was_stopped_on_request:
                return
            logger.error("executor.restarted executor=%s code=%d after_s=%g", name, code, RESTART_SECONDS)
            self._is_stopping.wait(RESTART_SECONDS)

    def stop(self) -> None:
        self._is_stopping.set()
        if self._executor is not None:
            self._executor.stop()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(self._settings.shutdown_timeout + END_SECONDS)


class _WithLifespan:
    """An ASGI application that stops the executors when the server shuts down. A signal may end it right after."""

    def __init__(self, application: Callable[..., Awaitable[Any]]) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":  # Django's application does not know it
            await self._application(scope, receive, send)
            return
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await asyncio.to_thread(stop)
        await send({"type": "lifespan.shutdown.complete"})


def _is_asgi(application: Any) -> bool:
    return inspect.iscoroutinefunction(application) or inspect.iscoroutinefunction(type(application).__call__)


def _is_test() -> bool:
    """Return whether this process runs tests. pytest imports their modules before it prepares them."""
    return hasattr(mail, "outbox") or "pytest" in sys.modules


def _server() -> str:
    return next((name for name in SERVERS if name in sys.modules), "web")


def _is_to_be_forked() -> bool:
    """Return whether gunicorn loads the application in its master, which only forks the workers (--preload)."""
    calls = {(f.f_globals.get("__name__"), f.f_code.co_name) for f, _ in traceback.walk_stack(None)}
    is_gunicorn = any(module == "gunicorn.arbiter" for module, _ in calls)
    return is_gunicorn and ("gunicorn.arbiter", "spawn_worker") not in calls


def _after_fork() -> None:
    """Start the executors that waited for the fork. Forget those of the parent, whose threads this process lacks."""
    for backend, embedded in list(_embedded.items()):
        if embedded.has_started:
            del _embedded[backend]
        else:
            embedded.start()


at_fork(after_in_child=_after_fork)
# Earlier than atexit, when bodies could not use the threads of asyncio any more.
getattr(threading, "_register_atexit", atexit.register)(stop)

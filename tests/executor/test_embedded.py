"""An executor in the process of a web server: jobqueue.contrib.embedded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import mail
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connections

from jobqueue import api, apps
from jobqueue.contrib import embedded
from jobqueue.models import Executor, Heartbeat
from jobqueue.values.states import Command, Status
from tests.executor import tasks
from tests.executor.harness import gates, on_postgresql, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop what a test has started, which is in the process of the tests."""
    monkeypatch.setattr(embedded, "_is_test", lambda: False)
    yield
    embedded.stop()
    connections.close_all()


def states() -> list[str]:
    return list(Heartbeat.objects.order_by("state").values_list("state", flat=True))


def test_second_start_starts_no_second_executor() -> None:
    application = get_wsgi_application()

    assert embedded.start(application) is application
    embedded.start()
    wait_for_status(tasks.add.enqueue(1), Status.SUCCESSFUL)

    assert Executor.objects.count() == 1
    assert ".in-" in Executor.objects.get().name
    embedded.stop()
    assert states() == ["STOPPED"]


def test_stop_does_not_wait_for_a_site_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "END_SECONDS", 0.5)
    monkeypatch.setattr("django.apps.apps.ready_event", threading.Event())
    embedded.start(shutdown_timeout=0.0)

    embedded.stop()

    assert "jobqueue-embedded" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("runner", ["pytest", "django"])
def test_application_that_a_test_imports_starts_no_executor(monkeypatch: pytest.MonkeyPatch, runner: str) -> None:
    """pytest imports the modules of tests while the settings still name the database of the site."""
    monkeypatch.undo()
    if runner == "pytest":
        monkeypatch.delattr(mail, "outbox")
    else:
        monkeypatch.delitem(sys.modules, "pytest")
    threads = threading.active_count()

    embedded.start(get_wsgi_application())

    assert threading.active_count() == threads
    assert not embedded._embedded


def test_stop_lets_a_task_end_in_its_time() -> None:
    embedded.start()
    result = tasks.wait_at.enqueue("embedded")
    gate = gates["embedded"]
    gate.wait_for(1)
    stopping = threading.Thread(target=embedded.stop)
    stopping.start()
    wait_until(lambda: states() == ["STOPPING"], "the stop")
    gate.open()
    stopping.join()

    assert wait_for_status(result, Status.SUCCESSFUL)


def test_executor_that_was_stopped_by_command_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "RESTART_SECONDS", 0.0)
    embedded.start()
    executor = wait_until(lambda: Executor.objects.filter(heartbeat__state="RUNNING").first(), "the start")
    api.command([executor.pk], Command.STOP)
    [running] = embedded._embedded.values()
    running.join()

    assert states() == ["STOPPED"]


def test_failed_executor_is_replaced_and_the_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "RESTART_SECONDS", 0.0)
    embedded.start()
    wait_until(lambda: states() == ["RUNNING"], "the start")
    [running] = embedded._embedded.values()
    assert running._executor is not None
    running._executor._on_failure(RuntimeError("a thread has ended"))
    wait_until(lambda: states() == ["RUNNING", "STOPPED"], "the next executor")

    wait_for_status(tasks.add.enqueue(1), Status.SUCCESSFUL)


def test_asgi_server_stops_the_executor_at_its_shutdown() -> None:
    application = embedded.start(get_asgi_application())
    wait_until(lambda: states() == ["RUNNING"], "the start")
    received = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(application({"type": "lifespan"}, receive, send))

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert states() == ["STOPPED"]


def test_module_is_imported_before_django_is_set_up() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    program = [sys.executable, "-c", "from jobqueue.contrib import embedded"]

    assert subprocess.run(program, env=environment, check=False, capture_output=True).stderr == b""


def exit_code_of_fork(check: Any) -> int:
    pid = os.fork()
    if not pid:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork_of_a_process_with_an_executor_has_none() -> None:
    embedded.start()
    wait_until(lambda: states() == ["RUNNING"], "the start")

    assert exit_code_of_fork(lambda: not embedded._embedded) == 0


def test_process_that_is_to_be_forked_starts_it_in_the_fork_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_is_to_be_forked", lambda: True)
    monkeypatch.setattr(embedded._Embedded, "_run", lambda self: None)
    embedded.start()

    [waiting] = embedded._embedded.values()
    assert not waiting.has_started
    assert exit_code_of_fork(lambda: waiting.has_started) == 0
    assert not waiting.has_started


@pytest.mark.parametrize(
    ("arguments", "environment", "is_debug", "started"),
    [
        (["runserver"], {"RUN_MAIN": "true"}, True, ["runserver"]),
        (["runserver", "--noreload"], {}, True, ["runserver"]),
        (["runserver"], {}, True, []),  # the process that only starts the other one again
        (["runserver", "--noreload"], {}, False, []),
        (["migrate"], {"RUN_MAIN": "true"}, True, []),
    ],
)
def test_runserver_with_debug_runs_an_executor_in_the_process_that_serves(
    arguments: list[str],
    environment: dict[str, str],
    is_debug: bool,
    started: list[str],
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings.DEBUG = is_debug
    settings.TASKS = {"default": settings.TASKS["default"]}
    calls: list[str] = []
    monkeypatch.setattr(embedded, "start", lambda **options: calls.append(options["server"]))
    monkeypatch.setattr(sys, "argv", ["manage.py", *arguments])
    monkeypatch.delenv("RUN_MAIN", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    apps.embed_in_runserver()

    assert calls == started
    assert ("RUNSERVER" in capsys.readouterr().err) == bool(started)

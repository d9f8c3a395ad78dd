"""Declarations with a mistake: system checks report them while Django loads the apps, later they raise."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps

from jobqueue import Actor, task
from jobqueue.conf.compat import PACKAGE, InvalidTask, InvalidTaskBackend
from jobqueue.declarations import registry
from jobqueue.declarations.checks import check_declarations

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while Django loads the apps."""
    monkeypatch.setattr(apps, "ready", False)


def ship(order_id: int) -> None: ...


@pytest.mark.usefixtures("loading")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_attempts": 0}, "ship: max_attempts must be a whole number from 1 to 1,000,000, not 0"),
        ({"expires": 60}, "ship: expires must be a datetime or a timedelta"),
        ({"backend": "bulk"}, "TASKS has no backend 'bulk'"),
        ({"retry": 3}, "task() takes no option 'retry' (did you mean 'retry_on'?); it takes name, "),
    ],
)
def test_task_with_a_mistake_is_a_check_error_with_file_and_line(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: Any = task(**options)(ship)

    [message] = check_declarations()
    assert message.id == "jobqueue.E014"
    assert message.msg.startswith(f"The task in {__name__.replace('.', '/')}.py:")
    assert reason in message.msg
    assert registry.get(f"{__name__}.ship") is None
    copy = wrong.using(priority=5)
    for use in (lambda: wrong.enqueue(1), lambda: copy.enqueue(1), lambda: wrong.enqueue_many([((1,), {})])):
        with pytest.raises(InvalidTask) as caught:
            use()
        assert reason in str(caught.value)
        assert "It is declared in " in str(caught.value)
    monkeypatch.setattr(apps, "ready", True)
    with pytest.raises(InvalidTask):
        wrong.using(priority=5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"priority": 1000}, "priority"),
        ({"queue_name": ""}, "queue_name must be a text of 1 to 128 characters"),
        ({"backend": "bulk"}, "TASKS has no backend 'bulk'"),
        ({"retry": 3}, "using() takes no option 'retry'; it takes "),
    ],
)
def test_copy_with_a_mistake_is_a_check_error_and_later_raises(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = task(ship)
    with monkeypatch.context() as loading:
        loading.setattr(apps, "ready", False)
        wrong = right.using(**options)

    [message] = check_declarations()
    assert message.id == "jobqueue.E014"
    assert message.msg.startswith(f"The task in {__name__.replace('.', '/')}.py:")
    assert reason in message.msg
    assert registry.get(right.task_type) is right
    with pytest.raises(InvalidTask, match="It is declared in "):
        wrong.enqueue(1)
    with pytest.raises((InvalidTask, InvalidTaskBackend, TypeError), match=re.escape(reason)):
        right.using(**options)


@pytest.mark.usefixtures("loading")
def test_actor_with_a_mistake_is_a_check_error_with_file_and_line() -> None:
    class WithoutContext(Actor):
        def poll(self, order_id: int) -> None: ...  # type: ignore[override]

    class WithTypo(Actor, max_atempts=3):  # type: ignore[call-arg]
        def poll(self, context: Any) -> None: ...

    first, second = (message.msg for message in check_declarations())
    assert "poll's second parameter must be called 'context'" in first
    assert "takes no keyword 'max_atempts' (did you mean 'max_attempts'?)" in second
    for wrong in (WithoutContext, WithTypo):
        with pytest.raises(InvalidTask, match="It is declared in "):
            wrong.enqueue()


@pytest.mark.usefixtures("loading")
def test_invalid_task_cannot_be_enqueued_in_a_backend_of_django(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}}
    wrong = task(max_attempts=0)(ship)
    with pytest.raises(InvalidTask, match="max_attempts must be"):
        wrong.enqueue(1)


TASKS = """
from jobqueue import Actor, Every, schedule, task


@task(max_attempts=0)
def send(): ...


@task
def fine(): ...


nothing = task(lambda: None)
urgent = fine.using(priority=1000)
schedule("urgent", urgent, Every(minutes=5))


class Import(Actor):
    def pol(self, context): ...
"""
SITE = """
import sys
from django.conf import settings
from django.core.management import execute_from_command_line
settings.configure(
    INSTALLED_APPS=["jobqueue", "shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x.sqlite3"}},
    TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}},
    USE_TZ=True,
)
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", [["check"], ["run_executors", "--burst"]])
def test_command_reports_every_invalid_declaration_of_a_site(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    (tmp_path / "manage.py").write_text(SITE)
    ran = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.returncode == 1
    assert "The task in shop/tasks.py:5 cannot be used: send: max_attempts must be a whole number" in ran.stderr
    assert "The task in shop/tasks.py:13 cannot be used: Task function must be defined at a module level" in ran.stderr
    assert "The task in shop/tasks.py:18 cannot be used: Import: an actor needs a method poll" in ran.stderr
    assert "The task in shop/tasks.py:14 cannot be used: " in ran.stderr
    assert "E011" not in ran.stderr
    assert "Traceback" not in ran.stderr

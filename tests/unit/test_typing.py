"""`mypy --strict` accepts the right calls in a user's file and finds the wrong ones."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mypy")

USER_FILE = """
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobqueue import Actor, Backoff, Cron, Done, Every, FunctionTask, schedule, task
from jobqueue.conf.compat import TaskContext


@task
def bare(order_id: int, *, note: str = "") -> str:
    return note * order_id

@task(queue_name="emails", max_attempts=5, backoff=Backoff(base=2), retry_on=OSError, timeout=30)
def optioned(order_id: int) -> None: ...

@task(takes_context=True, atomic=True, expires=timedelta(days=1), give_up_on=(KeyError, ValueError))
def contextual(context: TaskContext[..., Any], order_id: int) -> bytes:
    return bytes(context.attempt)

@task
async def later(order_id: int) -> list[int]:
    return [order_id]

@task(takes_context=True)
async def contextual_later(context: Any, order_id: int) -> float:
    return 1.0

@task(schedule=Cron("0 8 * * 1-5", timezone="Europe/Berlin"))
def morning_report() -> None: ...

class Cleanup(Actor, schedule=Every(minutes=5)):
    def poll(self, context: Any) -> Done:
        return Done()

schedule("a", bare, Every(minutes=5), args=["home"], queue_name="cache", overlap="skip", catch_up="latest", jitter=30)
schedule("b", Cleanup, Every(timedelta(hours=1)), kwargs={"a": 1}, expires=timedelta(hours=1))
schedule("c", later, Cron("@daily"), args=(1,), catch_up_window=3600, jitter=timedelta(minutes=1))
schedule("d", bare, "0 8 * * *")  # error
schedule("d", print, Every(minutes=5))  # error
schedule("d", bare, Every(minute=5))  # error
schedule("d", bare, Cron("@daily", tz="UTC"))  # error
schedule("d", bare, Every(minutes=5), overlap="sometimes")  # error
schedule("d", bare, Every(minutes=5), catchup="all")  # error
schedule("d", bare, Every(minutes=5), run_after=timedelta(hours=1))  # error

async def right() -> None:
    text: str = bare.enqueue(1, note="a").return_value
    optioned.enqueue(order_id=1)
    raw: bytes = contextual.enqueue(1).return_value
    numbers: list[int] = later.enqueue(1).return_value
    number: float = (await contextual_later.aenqueue(1)).return_value
    many = bare.enqueue_many([((1,), {"note": "a"}), ((2,), {})])
    first: str = many[0].return_value
    copy = bare.using(run_after=timedelta(hours=1), priority=3, key="k", metadata={"a": 1}, timeout=3)
    again: str = (await copy.aenqueue(2)).return_value
    found: str = bare.get_result("x").return_value
    called: list[int] = later.call(1)
    kept: Sequence[FunctionTask[..., Any]] = [bare, optioned, later]

async def wrong() -> None:
    bare.enqueue("one")  # error
    bare.enqueue()  # error
    bare.enqueue(1, remark="a")  # error
    bare.enqueue(1, "a")  # error
    optioned.enqueue(1, 2)  # error
    contextual.enqueue(None, 1)  # error
    contextual.enqueue("1")  # error
    later.enqueue("1")  # error
    await contextual_later.aenqueue("1")  # error
    await bare.aenqueue(order="1")  # error
    bare.using(priority=3).enqueue("1")  # error
    bare.using(prio=3)  # error
    bare.enqueue_many([1])  # error
    number: int = bare.enqueue(1).return_value  # error where Django has stubs
    bare(1)  # error where Django has stubs

@task(retries=3)  # error
def unknown_option() -> None: ...

@task(schedule="0 8 * * *")  # error
def wrong_schedule() -> None: ...

@task(max_attempts="three")  # error
def wrong_option() -> None: ...
"""


def test_strict_mypy_finds_exactly_the_wrong_calls(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    user_file = tmp_path / "user_tasks.py"
    user_file.write_text(USER_FILE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")  # without the plugin of Django
    pytest_cache = getattr(pytestconfig, "cache", None)
    cache = pytest_cache.mkdir("mypy") if pytest_cache else tmp_path / "cache"
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(cache)]
    ran = subprocess.run(
        [*command, "--no-error-summary", user_file.name],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"MYPYPATH": str(Path(__file__).parents[2]), "PATH": ""},
    )
    errors = [line for line in ran.stdout.splitlines() if line.startswith(user_file.name) and " error: " in line]
    reported = {int(line.split(":")[1]) for line in errors}
    lines = list(enumerate(USER_FILE.splitlines(), 1))
    wrong = {number for number, line in lines if line.endswith("# error")}
    # Without stubs for django.tasks, values of Django's classes are Any.
    unsure = {number for number, line in lines if line.endswith("# error where Django has stubs")}
    assert reported - unsure == wrong, ran.stdout + ran.stderr

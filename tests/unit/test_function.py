"""@task: declaring, copying and checking tasks; no database."""

import copy
import json
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import django
import msgspec
import pytest
from django.test import override_settings

import jobqueue
from jobqueue import Actor, Backoff, FunctionTask, task
from jobqueue.conf.compat import PACKAGE, InvalidTask, InvalidTaskBackend, TaskResultStatus
from jobqueue.conf.options import Options
from jobqueue.declarations import registry
from jobqueue.declarations.options import run_options, stored_options
from tests import tasks

IMMEDIATE = f"{PACKAGE}.backends.immediate.ImmediateBackend"
DUMMY = f"{PACKAGE}.backends.dummy.DummyBackend"
SOON = datetime(2030, 1, 1, tzinfo=UTC)


pytestmark = pytest.mark.usefixtures("own_registry")


def double(number: int) -> int:
    return 2 * number


lambda_of_the_module = lambda number: 2 * number  # noqa: E731


def triple(number: int) -> int:
    return 3 * number


async def double_later(number: int) -> int:
    return 2 * number


def with_context(context: Any, number: int) -> int:
    return number


def poll(self: Any, context: Any) -> None: ...


def with_context_by_keyword(*, context: Any) -> None: ...


# --- declaring


def test_bare_decorator_uses_defaults_of_backend() -> None:
    declared = task(double)
    assert isinstance(declared, FunctionTask)
    assert (declared.name, declared.task_type) == ("double", "tests.unit.test_function.double")
    assert (declared.max_attempts, declared.backoff, declared.timeout) == (None, None, None)
    assert registry.get("tests.unit.test_function.double") is declared


def test_decorator_with_options_declares_them() -> None:
    declared = task(
        queue_name="emails",
        priority=3,
        max_attempts=5,
        backoff=Backoff(base=2, cap=3600),
        retry_on=[OSError, ValueError],
        give_up_on=KeyError,
        timeout=timedelta(seconds=30),
        atomic=True,
        expires=timedelta(days=1),
        name="double",
    )(double)
    assert declared.task_type == "double"
    assert declared.retry_on == (OSError, ValueError)
    assert declared.give_up_on == (KeyError,)
    assert declared.timeout == 30.0
    assert (declared.queue_name, declared.priority, declared.max_attempts) == ("emails", 3, 5)
    assert registry.get("double") is declared
    assert declared.using(priority=1).task_type == "double"


def test_decorator_of_django_declares_function_task() -> None:
    declared = import_module(PACKAGE).task(double)
    assert type(declared) is FunctionTask
    assert registry.get("tests.unit.test_function.double") is declared
    if django.VERSION[:2] != (6, 0):  # its @task takes no options
        assert import_module(PACKAGE).task(max_attempts=7, name="seven")(double).max_attempts == 7


def test_unknown_option_error_lists_options() -> None:
    with pytest.raises(TypeError, match=r"no option 'retries'.*max_attempts"):
        task(retries=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 1,000,000, not 0"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"timeout": 0}, "timeout must be seconds or a timedelta, above 0"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "30"}, "timeout"),
        ({"backoff": 3}, "backoff must be a jobqueue.Backoff"),
        ({"retry_on": "OSError"}, "retry_on must be an exception class or a tuple of them"),
        ({"retry_on": (OSError, 3)}, "retry_on"),
        ({"give_up_on": int}, "give_up_on"),
        ({"atomic": "yes"}, "atomic must be True or False"),
        ({"expires": 60}, "expires must be a datetime or a timedelta"),
        ({"expires": datetime(2030, 1, 1)}, "expires must be an aware datetime"),
        ({"expires": timedelta(0)}, "expires must lie in the future"),
        ({"expires": datetime(9999, 1, 1, tzinfo=UTC)}, "expires must lie between the years 1970 and 9000"),
        ({"name": "x" * 501}, "name must be a text of 1 to 500 characters"),
        ({"name": "a\x00"}, "name"),
        ({"name": 5}, "name"),
        ({"name": ""}, "name must be a text of 1 to 500 characters, not ''"),
        ({"priority": 101}, "priority must be a whole number between -100 and 100"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"priority": float("nan")}, "priority must be a whole number"),
        ({"queue_name": "x" * 129}, "queue_name must be a text of 1 to 128 characters"),
        ({"queue_name": ""}, "queue_name"),
        # options of using()
        ({"key": ""}, "key must be a text of 1 to 255 characters"),
        ({"key": "x" * 256}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"metadata": [1]}, "metadata must be a mapping"),
        ({"tags": "vip"}, "tags must be a list of at most 20 texts of 1 to 100 characters, not 'vip'"),
        ({"tags": ["x"] * 3 + [""]}, "tags"),
        ({"tags": [5]}, "tags"),
        ({"tags": [str(n) for n in range(21)]}, "tags"),
        ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime."),
        ({"run_after": "tomorrow"}, "run_after must be a datetime or a timedelta"),
        ({"run_after": datetime(9999, 12, 31, tzinfo=UTC)}, "run_after must lie between the years"),
        ({"run_after": timedelta.max}, "run_after must lie within a thousand years"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], reason: str) -> None:
    is_of_using = options.keys() & {"key", "metadata", "run_after"}
    declare = task(double).using if is_of_using else lambda **options: task(**options)(double)
    with pytest.raises(InvalidTask) as caught:
        declare(**options)
    assert reason in str(caught.value)
    assert "double: " in str(caught.value) or "name" in options
    assert is_of_using or "tests.unit.test_function.double" not in registry.all()


def test_atomic_coroutine_is_refused() -> None:
    with pytest.raises(InvalidTask, match="atomic=True needs a plain function"):
        task(atomic=True)(double_later)


def test_only_module_level_functions_are_tasks() -> None:
    def local() -> None: ...

    others: list[Any] = [local, lambda: None, lambda_of_the_module, int, "emails", len]
    for other in others:
        with pytest.raises(InvalidTask, match="Task function must be defined at a module level"):
            task(other)
        with pytest.raises(InvalidTask, match="Task function must be defined at a module level"):
            task(name="stable")(other)
    assert not [name for name in registry.all() if "local" in name or "lambda" in name or name == "stable"]


def test_context_must_be_the_first_parameter() -> None:
    assert task(takes_context=True)(with_context).takes_context
    for wrong in (double, with_context_by_keyword):
        with pytest.raises(InvalidTask, match="first argument of 'context'"):
            task(takes_context=True)(wrong)  # type: ignore[arg-type]


# --- copying


def test_using_changes_only_the_copy() -> None:
    declared = task(max_attempts=3)(double)
    changed = declared.using(
        priority=5,
        queue_name="q",
        run_after=timedelta(hours=1),
        max_attempts=9,
        backoff=Backoff(base=1),
        timeout=timedelta(minutes=1),
        expires=SOON,
        key="order-1",
        metadata={"user": 1},
    )
    assert (changed.priority, changed.queue_name, changed.run_after) == (5, "q", timedelta(hours=1))
    assert (changed.max_attempts, changed.backoff, changed.timeout) == (9, Backoff(base=1), 60.0)
    assert (changed.expires, changed.key, changed.metadata) == (SOON, "order-1", {"user": 1})
    assert (declared.max_attempts, declared.priority, declared.key) == (3, 0, None)
    assert registry.get(declared.task_type) is declared
    assert changed.using(priority=6).max_attempts == 9
    assert {declared, declared.using(), declared.using(metadata={"a": [1]})} >= {declared}
    assert declared.using() == declared


def test_task_of_a_module_can_be_copied() -> None:
    """Django 6.1 imports the task again by the path of its function."""
    assert copy.copy(tasks.add) == tasks.add == copy.deepcopy(tasks.add)


def test_unknown_backend_error_lists_backends() -> None:
    what = r"^TASKS has no backend 'bulk'; it has 'default', 'sqlite'"
    with pytest.raises(InvalidTaskBackend, match=what):
        tasks.add.using(backend="bulk")
    with pytest.raises(InvalidTaskBackend, match=what):
        task(backend="bulk")(double)
    with pytest.raises(InvalidTaskBackend, match=what):
        type("Refused", (Actor,), {"__module__": __name__, "poll": poll}, backend="bulk")


# --- which options hold


def test_row_stores_only_options_changed_by_using() -> None:
    assert stored_options(tasks.named, tasks.named) == "{}"
    assert stored_options(tasks.named.using(priority=1, max_attempts=9), tasks.named) == "{}"
    changed = tasks.named.using(max_attempts=2, timeout=5, backoff=Backoff(base=1))
    assert json.loads(stored_options(changed, tasks.named)) == {
        "max_attempts": 2,
        "timeout": 5,
        "backoff": {"base": 1, "cap": 3600.0, "factor": 2.0, "jitter": 0.1},
    }


def test_limits_prefer_row_then_declaration_then_settings() -> None:
    defaults = Options(timeout=99.0)
    plain = run_options(tasks.add, "{}", defaults)
    assert (plain.max_attempts, plain.timeout, plain.backoff) == (4, 99.0, Backoff())
    declared = run_options(tasks.named, "{}", defaults)
    assert (declared.max_attempts, declared.timeout) == (9, 30)
    changed = stored_options(tasks.named.using(timeout=5, backoff=Backoff(base=1)), tasks.named)
    effective = run_options(tasks.named, changed, defaults)
    assert (effective.max_attempts, effective.timeout, effective.backoff) == (9, 5, Backoff(base=1))


@pytest.mark.parametrize(
    "stored",
    [
        '{"timeout": "x"}',
        '{"max_attempts": 0}',
        '{"backoff": {"base": -1}}',
        '{"backoff": {"base": "x"}}',
        '{"backoff": 3}',
        "[]",
        "{",
    ],
)
def test_invalid_stored_options_are_an_error(stored: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        run_options(tasks.add, stored, Options())


# --- other backends


@override_settings(TASKS={"default": {"BACKEND": IMMEDIATE}})
def test_immediate_backend_runs_task_at_once() -> None:
    assert tasks.add.enqueue(2, b=3).return_value == 5
    assert tasks.add_later.enqueue(2).return_value == 3
    assert tasks.fail.enqueue().status == TaskResultStatus.FAILED
    assert tasks.echo_context.enqueue(4).return_value["attempt"] == 1
    results = tasks.add.enqueue_many([((1,), {}), ((2,), {"b": 2})])
    assert [result.return_value for result in results] == [2, 4]
    assert task(max_attempts=3)(double).enqueue(4).return_value == 8


@override_settings(TASKS={"default": {"BACKEND": DUMMY, "QUEUES": []}})
def test_timedelta_becomes_datetime_under_another_backend() -> None:
    before = datetime.now(UTC)
    later = tasks.add.using(run_after=timedelta(hours=1), queue_name="q")
    assert isinstance(later.run_after, datetime)
    assert before + timedelta(hours=1) <= later.run_after <= datetime.now(UTC) + timedelta(hours=1)
    result = later.enqueue(1)
    assert result.status == TaskResultStatus.READY
    assert [stored.id for stored in later.get_backend().results] == [result.id]  # type: ignore[attr-defined]


# --- the package


def test_unknown_name_of_package_raises() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tusk'"):
        _ = jobqueue.tusk  # type: ignore[attr-defined]


def test_no_module_hides_public_name() -> None:
    from importlib.util import find_spec

    assert not [name for name in jobqueue.__all__ if name.isidentifier() and find_spec(f"jobqueue.{name}")]

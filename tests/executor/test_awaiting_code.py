"""Tasks whose name or arguments the code of an executor does not know."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.models import Task
from jobqueue.values.states import LimitKind, Status
from tests.engine.bench import new
from tests.executor import deployed_tasks as code
from tests.executor import tasks
from tests.executor.deployed_tasks import NAME, deploy
from tests.executor.harness import Burst, Start, on_both_databases, on_postgresql, row_of
from tests.factories import TaskFactory
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = on_postgresql

UNBOUND = "jobqueue.exceptions.UnboundCall"


def call(*args: Any, using: str = "default", **more: Any) -> Task:
    """Insert a call of the deployed task, as a process with any code would."""
    kwargs = more.pop("kwargs", {})
    backend = "sqlite" if using == "sqlite" else "default"
    return TaskFactory.create(
        **{
            "task_type": NAME,
            "args": list(args),
            "kwargs": kwargs,
            "backend": backend,
            "using": using,
            "max_attempts": 4,
        }
        | more
    )


def read(row: Task, using: str = "default") -> Task:
    return Task.objects.using(using).get(pk=row.pk)


def paths(row: Task) -> list[str]:
    return [error["exception_class_path"] for error in row.errors]


CALLS = [
    ([1, 2], {}, code.one_argument, code.two_arguments, "too many positional arguments: 2, and it takes 1"),
    ([1], {}, code.two_arguments, code.one_argument, "missing a required argument: 'b'"),
    ([1], {"b": 2}, code.one_argument, code.two_arguments, "got an unexpected keyword argument 'b'"),
    ([1, 2], {}, code.one_later, code.two_later, "too many positional arguments: 2, and it takes 1"),
    ([1], {}, code.two_later, code.one_later, "missing a required argument: 'b'"),
    ([1], {}, code.two_with_context, code.one_with_context, "missing a required argument: 'b'"),
    ([1], {"b": 2}, code.one_with_context, code.two_with_context, "got an unexpected keyword argument 'b'"),
    ([1, 2], {}, code.one_atomic, code.two_arguments, "too many positional arguments: 2, and it takes 1"),
    ([1, 2], {}, code.OneActor, code.TwoActor, "too many positional arguments: 2, and it takes 1"),
    ([1], {}, code.TwoActor, code.OneActor, "missing a required argument: 'b'"),
    ([], {"customer": 1}, code.of_client, code.of_customer, "missing a required argument: 'client'"),
    ([1, 2, 3], {}, code.two_arguments, code.any_positional, "too many positional arguments: 3, and it takes 2"),
    ([], {"x": 1}, code.any_positional, code.any_keyword, "got an unexpected keyword argument 'x'"),
    ([1], {}, code.any_keyword, code.any_positional, "too many positional arguments: 1, and it takes 0"),
]


@on_both_databases
@pytest.mark.parametrize(("args", "kwargs", "old", "new", "problem"), CALLS)
def test_unbound_call_waits_for_code_that_takes_it(
    burst: Burst,
    monkeypatch: pytest.MonkeyPatch,
    args: list[Any],
    kwargs: dict[str, Any],
    old: Any,
    new: Any,
    problem: str,
    backend: str,
) -> None:
    row = call(*args, kwargs=kwargs, using=backend)

    deploy(monkeypatch, old)
    burst(backend=backend)
    waiting = read(row, backend)
    deploy(monkeypatch, new)
    burst(backend=backend)
    done = read(row, backend)

    assert (waiting.status, waiting.attempts, waiting.worker_ids) == (Status.AWAITING_CODE, 0, [])
    assert (waiting.started_at, waiting.last_attempted_at) == (None, None)
    assert paths(waiting) == [UNBOUND]
    assert f" {problem}. " in waiting.errors[0]["message"]
    assert waiting.awaits_code_since is not None
    assert (done.status, done.attempts, len(done.worker_ids)) == (Status.SUCCESSFUL, 0, 1)
    assert (done.awaits_code_since, done.wake_at) == (None, None)


@on_both_databases
@pytest.mark.parametrize(
    ("state", "old", "new", "problem"),
    [
        ({"n": 1}, code.OfText, code.OfNumber, "OfText.State does not allow it: Expected `str`, got `int`"),
        ({"n": "1"}, code.OfNumber, code.OfText, "OfNumber.State does not allow it: Expected `int`, got `str`"),
        ({"n": 1}, code.OfMore, code.OfNumber, "OfMore.State does not allow it: Object missing required field `total`"),
        ({"n": 1}, code.OfPicky, code.OfNumber, "OfPicky.State does not allow it: 1"),
    ],
)
def test_actor_whose_state_the_code_does_not_take_waits_for_code_that_does(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, state: Any, old: Any, new: Any, problem: str, backend: str
) -> None:
    """As in a rolling deploy that changes the class State, in both directions."""
    row = call(inner_state=state, polls=1, attempts=1, using=backend)

    deploy(monkeypatch, old)
    for _ in range(2):
        burst(backend=backend)
    waiting = read(row, backend)
    deploy(monkeypatch, new)
    burst(backend=backend)
    done = read(row, backend)

    assert (waiting.status, waiting.attempts, waiting.inner_state) == (Status.AWAITING_CODE, 1, state)
    assert paths(waiting) == [UNBOUND]
    assert f"does not take the stored state: {problem}" in waiting.errors[0]["message"]
    assert waiting.wake_at is not None
    assert (done.status, done.return_value) == (Status.SUCCESSFUL, state["n"])


@on_both_databases
def test_state_that_no_code_takes_fails_after_the_longest_wait(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    deploy(monkeypatch, code.OfText)
    row = call(inner_state={"n": 1}, polls=1, using=backend)
    burst(backend=backend)
    Task.objects.using(backend).filter(pk=row.pk).update(wake_at=engine_for(backend).db.now())

    burst(backend=backend)

    failed = read(row, backend)
    assert (failed.status, failed.inner_state) == (Status.FAILED, {"n": 1})
    assert failed.errors[-1]["message"].startswith("deployed.call does not take the stored state: OfText.State")
    assert "The task waited 1 day, 0:00:00 for code that does." in failed.errors[-1]["message"]


@on_both_databases
def test_unknown_task_waits_for_its_code(burst: Burst, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    row = call(1, using=backend)

    for _ in range(2):
        burst(backend=backend)
    waiting = read(row, backend)
    deploy(monkeypatch, code.one_argument)
    burst(backend=backend)

    assert (waiting.status, waiting.attempts, waiting.wake_at) == (Status.AWAITING_CODE, 0, None)
    assert paths(waiting) == ["jobqueue.exceptions.UnknownTask"]
    assert read(row, backend).status == Status.SUCCESSFUL


def test_type_error_in_a_body_uses_attempts(burst: Burst, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(monkeypatch, code.wrong_inside)
    row = call(1)

    burst()

    ended = read(row)
    assert (ended.status, ended.attempts) == (Status.FAILED, 2)
    assert paths(ended) == ["builtins.TypeError"] * 2


def test_unknown_name_that_becomes_an_unbound_call_says_so(burst: Burst, monkeypatch: pytest.MonkeyPatch) -> None:
    row = call(1)

    burst()
    deploy(monkeypatch, code.two_arguments)
    for _ in range(2):
        burst()

    waiting = read(row)
    assert waiting.status == Status.AWAITING_CODE
    assert paths(waiting) == ["jobqueue.exceptions.UnknownTask", UNBOUND]
    assert waiting.wake_at is not None


@on_both_databases
def test_unbound_call_fails_after_the_longest_wait(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, announced: list[Any], caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    deploy(monkeypatch, code.two_arguments)
    row = call(1, using=backend)
    burst(backend=backend)
    waits_until = read(row, backend).wake_at
    assert waits_until is not None
    assert timedelta(hours=23) < waits_until - engine_for(backend).db.now() < timedelta(hours=24)
    Task.objects.using(backend).filter(pk=row.pk).update(wake_at=engine_for(backend).db.now())

    burst(backend=backend)

    failed = read(row, backend)
    assert (failed.status, failed.attempts) == (Status.FAILED, 0)
    assert paths(failed) == [UNBOUND] * 2
    assert failed.errors[-1]["message"] == (
        "deployed.call does not take the stored arguments: missing a required argument: 'b'. The task waited "
        "1 day, 0:00:00 for code that does. Deploy code that does and requeue the task, or call it again."
    )
    assert [str(result.status) for result in announced] == ["FAILED"]
    assert len([record for record in caplog.records if record.getMessage().startswith("task.failed ")]) == 1


def test_parent_of_an_unbound_call_gets_its_failure(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    parent = code.Spawner.enqueue()
    deploy(monkeypatch, code.one_argument, code.two_arguments.task_type)
    burst()
    child = Task.objects.get(parent_id=UUID(parent.id))
    assert (child.status, Task.objects.get(pk=parent.id).status) == (Status.AWAITING_CODE, Status.SUSPENDED)
    Task.objects.filter(pk=child.pk).update(wake_at=engine_for("default").db.now())

    burst()

    assert Task.objects.get(pk=parent.id).return_value == ["CHILD_FAILED"]


def test_unbound_call_fails_at_once_without_a_wait(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    options(UNBOUND_CALL_TIMEOUT=0)
    deploy(monkeypatch, code.two_arguments)
    row = call(1)

    burst()

    assert (read(row).status, paths(read(row))) == (Status.FAILED, [UNBOUND])


def test_wait_without_a_limit_has_no_end(burst: Burst, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    options(UNBOUND_CALL_TIMEOUT=None)
    deploy(monkeypatch, code.two_arguments)
    row = call(1)

    for _ in range(2):
        burst()

    assert (read(row).status, read(row).wake_at, paths(read(row))) == (Status.AWAITING_CODE, None, [UNBOUND])


@pytest.mark.parametrize("old", [None, code.two_arguments])
def test_task_that_awaits_code_expires(burst: Burst, monkeypatch: pytest.MonkeyPatch, old: Any) -> None:
    now = engine_for("default").db.now()
    deploy(monkeypatch, old)
    row = call(1, expires_at=now + timedelta(hours=1))
    burst()
    assert read(row).wake_at == row.expires_at
    Task.objects.update(expires_at=now, wake_at=now)

    burst()

    assert (read(row).status, paths(read(row))[-1]) == (Status.FAILED, "jobqueue.exceptions.Expired")


@on_both_databases
def test_task_that_awaits_code_uses_no_limit(burst: Burst, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    deploy(monkeypatch, code.two_arguments, code.one_limited.task_type)
    unbound = code.one_limited.using(backend=backend).enqueue(1)
    result = code.neighbour.using(backend=backend).enqueue()

    burst(backend=backend)
    rows = Task.objects.using(backend).in_bulk()
    assert {str(pk): row.status for pk, row in rows.items()} == {
        unbound.id: Status.AWAITING_CODE,
        result.id: Status.SUCCESSFUL,
    }
    deploy(monkeypatch, code.one_limited, code.one_limited.task_type)
    burst(backend=backend)

    assert Task.objects.using(backend).get(pk=unbound.id).status == Status.SUCCESSFUL


@on_both_databases
def test_task_that_awaits_code_uses_no_start_of_a_rate(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    name = code.one_at_a_rate.task_type
    result = code.one_at_a_rate.using(backend=backend).enqueue(1)
    deploy(monkeypatch, code.two_at_a_rate, name)
    burst(backend=backend)
    assert Task.objects.using(backend).get(pk=result.id).status == Status.AWAITING_CODE
    deploy(monkeypatch, code.one_at_a_rate, name)

    burst(backend=backend)

    assert Task.objects.using(backend).get(pk=result.id).status == Status.SUCCESSFUL


@pytest.mark.parametrize("errors", ['[{"awaited": 1}, ' + "1" * 5000 + "]", '{"awaited": []}', "7"])
@pytest.mark.parametrize("old", [None, code.two_arguments])
def test_unreadable_errors_do_not_stop_the_executor(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, old: Any, errors: str
) -> None:
    deploy(monkeypatch, old)
    row, result = call(1), tasks.add.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobqueue_task SET errors = %s WHERE id = %s", [errors, row.pk])

    for _ in range(2):
        burst()

    assert row_of(result).status == Status.SUCCESSFUL
    status = Task.objects.filter(pk=row.pk).values_list("status", flat=True).get()
    assert status in (Status.AWAITING_CODE, Status.FAILED)


def test_cancel_ends_a_task_that_awaits_code(burst: Burst) -> None:
    row = call(1)
    burst()

    report = api.cancel([row.pk])

    assert (report.cancelled, read(row).status) == (1, Status.CANCELLED)


@on_both_databases
@pytest.mark.parametrize("names", [2, 5000])
def test_tasks_without_code_do_not_delay_others(start: Start, backend: str, names: int) -> None:
    rows = [
        Task(task_type=f"moved.away{number % names}", backend=backend, rank=now, enqueued_at=now, args=[1])
        for now in [engine_for(backend).db.now() - timedelta(hours=1)]
        for number in range(5000)
    ]
    Task.objects.using(backend).bulk_create(rows)
    results = tasks.add.using(backend=backend).enqueue_many([((number,), {}) for number in range(100)])

    running = start(backend=backend, threads=2)
    wait_until(lambda: running.loop.outcomes.counts.finished == len(results), "the end of the known tasks")

    wait_until(lambda: Task.objects.using(backend).awaiting_code().count() == len(rows), "the others to wait")
    assert running.loop.turns < 200


@on_both_databases
def test_tasks_without_code_in_very_many_queues_do_not_delay_others(start: Start, backend: str) -> None:
    now = engine_for(backend).db.now() - timedelta(hours=1)
    places = [{"task_type": f"moved.away{number}", "queue_name": f"q{number % 1000}"} for number in range(5000)]
    rows = [Task(backend=backend, rank=now, enqueued_at=now, args=[1], **columns) for columns in places]
    Task.objects.using(backend).bulk_create(rows)
    results = tasks.add.using(backend=backend, queue_name="q7").enqueue_many([((number,), {}) for number in range(100)])

    running = start(backend=backend, threads=2)
    wait_until(lambda: running.loop.outcomes.counts.finished == len(results), "the end of the known tasks")

    wait_until(lambda: Task.objects.using(backend).awaiting_code().count() == len(rows), "the others to wait")
    assert running.loop.turns < 200


def test_unbound_calls_do_not_delay_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(monkeypatch, code.two_arguments)
    now = engine_for("default").db.now() - timedelta(hours=1)
    fits = [number % 100 == 0 for number in range(3000)]
    rows = [Task(task_type=NAME, rank=now, enqueued_at=now, args=[1, 2] if fit else [1]) for fit in fits]
    Task.objects.bulk_create(rows)
    tasks.add.enqueue_many([((number,), {}) for number in range(100)])

    running = start(threads=2)
    wait_until(lambda: running.loop.outcomes.counts.finished == 100 + sum(fits), "the end of the calls that fit")

    wait_until(lambda: Task.objects.awaiting_code().count() == len(fits) - sum(fits), "the others to wait")
    assert running.loop.turns < 1000
    assert {paths(row)[0] for row in Task.objects.awaiting_code()} == {UNBOUND}
    assert not Task.objects.awaiting_code().filter(wake_at=None)


@on_both_databases
def test_unbound_calls_of_many_tasks_and_kinds_do_not_delay_others(
    start: Start, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    now = engine_for(backend).db.now() - timedelta(hours=1)
    for number in range(1000):
        deploy(monkeypatch, code.two_arguments, f"{NAME}{number}")
    rows = [
        Task(task_type=f"{NAME}{number % 1000}", backend=backend, rank=now, enqueued_at=now, kwargs={f"k{number}": 1})
        for number in range(3000)
    ]
    Task.objects.using(backend).bulk_create(rows)
    results = tasks.add.using(backend=backend).enqueue_many([((number,), {}) for number in range(100)])

    running = start(backend=backend, threads=2)
    wait_until(lambda: running.loop.outcomes.counts.finished == len(results), "the end of the known tasks")

    waiting = Task.objects.using(backend).awaiting_code()
    wait_until(lambda: waiting.count() == len(rows), "the others to wait")
    assert running.loop.turns < 200
    assert {paths(row)[0] for row in waiting} == {UNBOUND}


@on_both_databases
@pytest.mark.parametrize("kind", LimitKind)
def test_tasks_without_code_that_a_key_blocks_do_not_delay_others(start: Start, backend: str, kind: LimitKind) -> None:
    limits: dict[str, Any] = {f"{kind}_key": "k:", f"{kind}_limit": 1}
    if kind == LimitKind.RATE:
        limits["rate_seconds"] = 3600.0
    places = [{"task_type": f"moved.away{number}", "queue_name": f"q{number % 300}"} for number in range(1000)]
    unknown = [new(args="[1]", **columns, **limits) for columns in places]
    with_code = new(task_type=tasks.add.task_type, args="[1]", kwargs='{"b": 1}', **limits)
    engine_for(backend).enqueues.enqueue([*unknown, with_code])

    running = start(backend=backend, threads=2)
    wait_until(lambda: running.loop.outcomes.counts.finished == 1, "the end of the known task")

    assert Task.objects.using(backend).awaiting_code().count() == len(unknown)
    assert running.loop.turns < 200


@on_both_databases
def test_code_that_comes_is_found_behind_very_many_names_without_any(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    now = engine_for(backend).db.now() - timedelta(hours=1)
    waits = {"backend": backend, "status": Status.AWAITING_CODE, "rank": now, "enqueued_at": now}
    waits["awaits_code_since"] = now
    rows = [Task(task_type=f"away{number}", **waits) for number in range(10_000)]
    deploy(monkeypatch, code.one_argument, "come")
    come = Task(task_type="come", args=[1], max_attempts=1, **waits)
    Task.objects.using(backend).bulk_create([*rows, come])

    burst(backend=backend)

    assert read(come, backend).status == Status.SUCCESSFUL


def test_tasks_without_code_are_logged_once_a_minute(burst: Burst, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(30):
        call(1, task_type=f"moved.away{number % 2}")

    with caplog.at_level("DEBUG", "jobqueue.executor"):
        burst()

    lines = [record.getMessage() for record in caplog.records if "moved.away" in record.getMessage()]
    assert len(lines) == 2
    assert sum(int(line.partition("count=")[2].partition(" ")[0]) for line in lines) <= 30
    assert all(line.startswith("task.deferred task=moved.away") for line in lines)


def test_very_many_names_without_code_have_a_few_lines(
    burst: Burst, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = engine_for("default").db.now()
    Task.objects.bulk_create(
        [Task(task_type=f"moved.away{number}", rank=now, enqueued_at=now, args=[1]) for number in range(200)]
    )

    with caplog.at_level("DEBUG", "jobqueue.executor"):
        burst()

    names = [line for line in caplog.messages if line.startswith("task.deferred task=moved.away")]
    (others,) = [line for line in caplog.messages if line.startswith("tasks.deferred ")]
    assert len(names) == 20
    assert int(others.partition("names=")[2].partition(" ")[0]) <= 180

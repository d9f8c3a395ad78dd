"""Celery's tasks on this queue: calls, options, requests, retries, handlers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

import jobqueue
from jobqueue import testing
from jobqueue.contrib.celery import NotSupported, Task, current_app, current_task, shared_task
from jobqueue.contrib.celery.exceptions import MaxRetriesExceededError, NotRegistered, Retry
from jobqueue.contrib.celery.result import AsyncResult
from jobqueue.contrib.celery.signals import task_failure, task_postrun, task_prerun, task_retry, task_success
from jobqueue.models import Task as Row
from jobqueue.testing import advance, run_until_idle
from jobqueue.values.states import Status
from tests.contrib import celery_tasks as tasks
from tests.fixtures import Options

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def sqlite(options: Options) -> None:
    options(DATABASE="sqlite")


def row_of(result: AsyncResult) -> Row:
    row = AsyncResult(result.id).row
    assert isinstance(row, Row)
    return row


class TestCalls:
    def test_delay_enqueues_a_row_under_the_name_of_celery(self) -> None:
        result = tasks.add.delay(1, y=2)
        row = row_of(result)
        assert (row.task_type, row.args, row.kwargs) == ("tests.contrib.celery_tasks.add", [1], {"y": 2})
        assert (result.state, result.ready()) == ("PENDING", False)
        run_until_idle()
        assert (result.state, result.get(), result.successful()) == ("SUCCESS", 3, True)

    def test_task_is_a_function_when_it_is_called(self) -> None:
        assert tasks.add(1, 2) == 3
        assert tasks.describe.request.called_directly

    def test_wrong_arguments_are_a_type_error_at_the_call(self) -> None:
        for arguments in ((), ("ab",), ((), [1])):
            with pytest.raises(TypeError):
                tasks.add.apply_async(*arguments)
        assert not Row.objects.using("sqlite").exists()

    def test_dates_decimals_and_bytes_arrive_as_such(self) -> None:
        values = [datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), Decimal("1.5"), uuid4(), b"text", b"\xff", (1,)]
        result = tasks.echo.delay(*values, when=values[0])
        run_until_idle()
        ((args, kwargs),) = tasks.calls
        assert [*args] == [*values[:-1], [1]]
        assert kwargs == {"when": values[0]}
        assert result.get() == [*values[:-1], [1], {"when": values[0]}]

    def test_argument_that_is_not_json_is_refused_at_the_call(self) -> None:
        with pytest.raises(jobqueue.InvalidArguments, match=r"add.*x"):
            tasks.add.delay(object())

    def test_parameter_called_context_takes_its_argument(self) -> None:
        by_name = tasks.render.delay("{a}", context={"a": 1})
        by_place = tasks.render.delay("{a}", {"a": 2})
        run_until_idle()
        assert (by_name.get(), by_place.get()) == ("1", "2")

    def test_options_of_the_call_become_those_of_the_row(self) -> None:
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        later = row_of(tasks.add.apply_async((1,), countdown=600, queue="slow", priority=9, expires=3600))
        at = row_of(tasks.add.apply_async((1,), eta=moment.replace(tzinfo=None), expires=moment, time_limit=5))
        assert (later.status, later.queue_name, later.priority) == (Status.SCHEDULED, "slow", 9)
        assert later.wake_at
        assert later.expires_at
        assert timedelta(minutes=49) < later.expires_at - later.wake_at < timedelta(minutes=51)
        assert (at.wake_at, at.expires_at, at.options) == (moment, moment, {"timeout": 5.0})

    def test_options_of_the_task_become_those_of_the_row(self) -> None:
        row = row_of(tasks.limited.delay())
        assert (row.queue_name, row.priority, row.rate_limit, row.rate_seconds) == ("slow", 7, 10, 60.0)
        assert row.expires_at is not None
        assert tasks.slow.declared.timeout == 0.2

    def test_priority_is_reversed_for_redis(self, settings: Any) -> None:
        settings.CELERY_BROKER_URL = "redis://localhost"
        assert row_of(tasks.limited.delay()).priority == -7

    def test_expired_task_is_revoked(self) -> None:
        result = tasks.add.apply_async((1,), expires=-1)
        run_until_idle()
        assert result.state == "REVOKED"

    def test_id_of_the_caller_is_that_of_the_task(self) -> None:
        pk = str(uuid4())
        result = tasks.describe.apply_async(task_id=pk)
        named = tasks.describe.apply_async(task_id="nightly")
        run_until_idle()
        assert (result.id, result.get()["id"], row_of(result).pk) == (pk, pk, UUID(pk))
        assert (named.id, AsyncResult("nightly").get()["id"]) == ("nightly", "nightly")

    def test_id_is_refused_while_its_task_lives_and_taken_over_later(self) -> None:
        tasks.add.apply_async((1,), task_id="once")
        with pytest.raises(jobqueue.DuplicateKey, match="once"):
            tasks.add.apply_async((2,), task_id="once")
        run_until_idle()
        tasks.add.apply_async((3,), task_id="once")
        run_until_idle()
        assert AsyncResult("once").get() == 3

    @pytest.mark.parametrize("option", [{"exchange": "e"}, {"routing_key": "r"}, {"serializer": "pickle"}, {"foo": 1}])
    def test_option_without_counterpart_is_refused_by_name(self, option: dict[str, Any]) -> None:
        with pytest.raises(NotSupported, match=rf"(?s){next(iter(option.values()))}.*docs/how-to-celery.md"):
            tasks.add.apply_async((1,), **option)

    def test_options_about_messages_change_nothing(self) -> None:
        tasks.add.apply_async(
            (1,), retry=False, serializer="json", compression="gzip", shadow="sum", ignore_result=False
        )
        run_until_idle()

    def test_send_task_finds_tasks_by_name(self) -> None:
        result = current_app.send_task("custom.name")
        run_until_idle()
        assert result.get() == "named"
        with pytest.raises(NotRegistered, match=r"shop\.unknown"):
            current_app.send_task("shop.unknown")

    def test_class_with_run_is_a_task(self) -> None:
        result = tasks.multiply.delay(6, 7)
        run_until_idle()
        assert (result.get(), row_of(result).task_type) == (42, "tests.multiply")

    def test_declaration_is_refused_for_pickled_arguments(self) -> None:
        with pytest.raises(NotSupported, match="pickle"):
            shared_task(name="pickled", serializer="pickle")(lambda: None)


class TestRequests:
    def test_request_knows_id_queue_and_name(self) -> None:
        result = tasks.describe.apply_async(queue="slow", headers={"tenant": "a"})
        run_until_idle()
        name = "tests.contrib.celery_tasks.describe"
        assert result.get() == {"id": result.id, "name": name, "current": name, "queue": "slow", "direct": False}
        (request,) = tasks.calls
        assert (request.headers, request.tenant, request.retries, request.is_eager) == ({"tenant": "a"}, "a", 0, False)
        assert not current_task


class TestRetries:
    def test_retry_runs_the_same_row_again_after_its_delay(self) -> None:
        result = tasks.flaky.delay(1)
        run_until_idle()
        assert (result.state, type(result.result)) == ("RETRY", ConnectionError)
        row = row_of(result)
        assert row.wake_at is not None
        assert timedelta(seconds=25) < row.wake_at - datetime.now(UTC) <= timedelta(seconds=30)
        advance(timedelta(seconds=30))
        run_until_idle()
        assert (result.get(), tasks.calls) == (1, [0, 1])

    def test_countdown_of_a_retry_is_its_delay(self) -> None:
        result = tasks.flaky.delay(1, countdown=0)
        run_until_idle()
        assert result.get() == 1

    def test_error_is_raised_after_max_retries(self) -> None:
        result = tasks.flaky.delay(9, countdown=0)
        run_until_idle()
        assert (result.state, tasks.calls) == ("FAILURE", [0, 1, 2])
        with pytest.raises(ConnectionError, match="down"):
            result.get()

    def test_retry_without_an_error_ends_with_one_that_says_so(self) -> None:
        result = tasks.impatient.delay()
        run_until_idle()
        advance(timedelta(seconds=1))
        run_until_idle()
        with pytest.raises(MaxRetriesExceededError, match="Can't retry"):
            result.get()

    def test_max_retries_of_the_call_wins_over_the_declaration(self) -> None:
        result = tasks.flaky.delay(5, countdown=0, max_retries=5)
        run_until_idle()
        assert (result.get(), tasks.calls) == (5, [0, 1, 2, 3, 4, 5])

    def test_errors_without_a_retry_fail_at_once(self) -> None:
        result = tasks.broken.delay("no")
        run_until_idle()
        assert (result.state, result.failed(), result.retries) == ("FAILURE", True, 1)
        with pytest.raises(ValueError, match="no"):
            result.get()
        assert "ValueError: no" in (result.traceback or "")

    def test_autoretry_waits_longer_each_time_up_to_its_maximum(self) -> None:
        result = tasks.stubborn.delay()
        waits = []
        for _ in range(4):
            run_until_idle()
            waits.append(round((row_of(result).wake_at - datetime.now(UTC)).total_seconds()))  # type: ignore[operator]
            advance(timedelta(seconds=7))
        run_until_idle()
        assert (waits, result.state, len(tasks.calls)) == ([5, 7, 7, 7], "FAILURE", 5)

    @pytest.mark.parametrize("kind", ["Refused", "Value"])
    def test_autoretry_leaves_other_errors_alone(self, kind: str) -> None:
        result = tasks.stubborn.delay(kind)
        run_until_idle()
        assert result.state == "FAILURE"

    def test_requeued_task_has_all_its_retries_again(self) -> None:
        result = tasks.flaky.delay(2, countdown=0, max_retries=1)
        run_until_idle()
        jobqueue.requeue(result.id)
        tasks.calls.clear()
        run_until_idle()
        assert tasks.calls == [0, 1]

    def test_retry_outside_of_a_run_raises_the_error(self) -> None:
        with pytest.raises(ConnectionError):
            tasks.flaky(1)
        with pytest.raises(Retry):
            tasks.impatient()

    def test_retry_with_other_arguments_is_refused(self) -> None:
        result = tasks.flaky.delay(1, args=[2])
        run_until_idle()
        with pytest.raises(NotSupported, match="args"):
            result.get()

    def test_retry_with_its_own_arguments_runs_the_row_again(self) -> None:
        result = tasks.again.delay(5)
        assert row_of(result).rate_limit is None
        run_until_idle()
        assert result.get() == 5

    def test_ignored_task_has_no_result_and_a_rejected_one_fails(self) -> None:
        ignored, rejected = tasks.ignored.delay(), tasks.rejected.delay()
        run_until_idle()
        assert (ignored.get(), rejected.state) == (None, "FAILURE")


class TestHandlers:
    def test_task_that_reports_its_failure_and_ignores_the_rest_is_failed(self) -> None:
        result = tasks.failed_by_hand.delay()
        run_until_idle()
        assert result.state == "FAILURE"
        assert "no such file" in str(result.info)

    def test_handlers_of_a_base_class_are_called(self) -> None:
        tasks.based.delay()
        run_until_idle()
        assert tasks.calls == ["before_start", ("on_success", "done"), ("after_return", "SUCCESS")]
        tasks.calls.clear()
        tasks.based.delay(fails=True)
        run_until_idle()
        assert tasks.calls == ["before_start", ("on_failure", "based", True), ("after_return", "FAILURE")]
        tasks.calls.clear()
        tasks.based_again.delay()
        run_until_idle()
        assert tasks.calls == [*["before_start"] * 2, ("on_success", "done"), ("after_return", "SUCCESS")]

    def test_signals_are_sent_around_a_run(self) -> None:
        sent: list[Any] = []

        @task_prerun.connect
        def before(sender: Task, task_id: str, task: Task, **_: Any) -> None:
            sent.append(("prerun", sender.name.rpartition(".")[2]))

        @task_success.connect(sender=tasks.add)
        def succeeded(sender: Task, result: Any, **_: Any) -> None:
            sent.append(("success", result))

        @task_failure.connect
        def failed(sender: Task, exception: Exception, einfo: Any, **_: Any) -> None:
            sent.append(("failure", str(exception)))

        @task_retry.connect
        def retried(sender: Task, request: Any, reason: Any, einfo: Any, **_: Any) -> None:
            sent.append(("retry", request.retries))

        @task_postrun.connect
        def after(sender: Task, retval: Any, state: str, **_: Any) -> None:
            sent.append(("postrun", state))
            raise RuntimeError("an error of a receiver does not reach the task")

        result = tasks.add.delay(1, 2)
        tasks.broken.delay()
        tasks.flaky.delay(1)
        tasks.based.delay()
        tasks.rejected.delay()
        run_until_idle()
        assert result.get() == 3
        assert sent == [
            *[("prerun", "add"), ("success", 3), ("postrun", "SUCCESS")],
            *[("prerun", "broken"), ("failure", "broken"), ("postrun", "FAILURE")],
            *[("prerun", "flaky"), ("retry", 0), ("postrun", "RETRY")],
            *[("prerun", "based"), ("postrun", "SUCCESS")],
            *[("prerun", "rejected"), ("postrun", "REJECTED")],
        ]

    def test_other_signals_are_refused_by_name(self) -> None:
        with pytest.raises(NotSupported, match="worker_ready"):
            from jobqueue.contrib.celery.signals import worker_ready  # noqa: F401


def test_polls_of_the_test_queue_report_the_retry_of_a_task() -> None:
    tasks.flaky.delay(1)
    (polled,) = testing.run_until_idle()
    assert (polled.status, isinstance(polled.error, Retry)) == (Status.SCHEDULED, True)

"""Celery's results, canvas, settings and schedules on this queue."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

import jobqueue
from jobqueue import Status
from jobqueue.contrib.celery import (
    Celery,
    NotSupported,
    app,
    chain,
    chord,
    current_app,
    group,
    maybe_signature,
    signature,
    uuid,
)
from jobqueue.contrib.celery.exceptions import ChordError, TaskRevokedError, TimeoutError  # noqa: A004 - Celery's name
from jobqueue.contrib.celery.result import AsyncResult
from jobqueue.contrib.celery.schedules import crontab, schedule, solar
from jobqueue.contrib.celery.utils.log import get_task_logger
from jobqueue.declarations import schedules as declared_schedules
from jobqueue.models import Task as Row
from jobqueue.testing import advance, poll_once, run_until_idle
from tests.contrib import celery_tasks as tasks
from tests.contrib.celery_tasks import add, broken, echo, total
from tests.fixtures import Options

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def sqlite(options: Options) -> None:
    options(DATABASE="sqlite")


@pytest.fixture
def eager(settings: Any) -> None:
    settings.CELERY_TASK_ALWAYS_EAGER = True


def rows() -> Any:
    return Row.objects.using("sqlite")


def calls_of(task: Any) -> list[Any]:
    return [row.args for row in rows().filter(task_type=task.name).order_by("enqueued_at")]


class TestResults:
    def test_unknown_id_is_pending(self) -> None:
        result = AsyncResult(uuid())
        assert (result.state, result.result, result.ready(), result.name) == ("PENDING", None, False, None)

    def test_update_state_shows_its_state_and_meta_while_the_task_runs(self) -> None:
        result = tasks.reporting.delay()
        row = Row(pk=result.id)
        seen: list[Any] = []

        def look(**_: Any) -> None:
            running = AsyncResult(row.pk)
            seen.append((running.state, running.info))

        from jobqueue.executor.reports import PendingReports

        add_progress = PendingReports.add_progress

        def write_at_once(self: Any, progress: Any) -> None:
            from jobqueue.engine import engine_for

            add_progress(self, progress)
            self.write(engine_for("default"), is_last=True)
            look()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PendingReports, "add_progress", write_at_once)
            run_until_idle()
        assert seen == [("PROGRESS", {"current": 3, "total": 10, "since": 0})]
        assert (result.state, result.info) == ("SUCCESS", None)

    def test_revoke_cancels_a_task_that_waits(self) -> None:
        result = add.apply_async((1,), countdown=60)
        app.control.revoke([result.id])
        assert (result.state, result.ready()) == ("REVOKED", True)
        with pytest.raises(TaskRevokedError):
            result.get()
        result.forget()
        assert AsyncResult(result.id).state == "PENDING"

    def test_revoke_stops_a_running_task_only_to_terminate_it(self) -> None:
        result = add.delay(1)
        rows().filter(pk=result.id).update(status=Status.RUNNING)
        result.revoke()
        assert rows().get(pk=result.id).cancel_requested_at is None
        result.revoke(terminate=True)
        assert rows().get(pk=result.id).cancel_requested_at is not None

    def test_running_task_is_started_if_it_is_tracked(self, settings: Any) -> None:
        result = add.delay(1)
        rows().filter(pk=result.id).update(status=Status.RUNNING)
        assert result.state == "PENDING"
        settings.CELERY_TASK_TRACK_STARTED = True
        assert result.state == "STARTED"

    def test_get_gives_up_after_its_timeout(self) -> None:
        with pytest.raises(TimeoutError):
            add.delay(1).get(timeout=0)

    def test_get_in_a_transaction_says_why_it_would_never_end(self) -> None:
        with transaction.atomic("sqlite"), pytest.raises(RuntimeError, match="transaction"):
            add.delay(1).get()

    def test_get_in_a_task_is_refused(self) -> None:
        result = tasks.joining.delay()
        run_until_idle()
        with pytest.raises(RuntimeError, match="within a task"):
            result.get()

    def test_ignored_result_is_not_stored(self) -> None:
        ignored, kept = tasks.forgetful.delay(), tasks.forgetful.apply_async(ignore_result=False)
        run_until_idle()
        assert (ignored.get(), kept.get()) == (None, 42)

    def test_result_refuses_what_has_no_counterpart(self) -> None:
        with pytest.raises(NotSupported, match=r"then\(\)"):
            add.delay(1).then(print)
        with pytest.raises(NotSupported, match="inspect"):
            app.control.inspect()
        with pytest.raises(NotSupported, match="amqp"):
            app.amqp  # noqa: B018


class TestCanvas:
    def test_chain_puts_each_result_in_front(self) -> None:
        by_call = chain(add.s(1, 2), add.s(10), add.si(5, 5), add.s(y=100)).delay()
        by_bar = (add.s(1, 2) | add.s(10) | echo.s(word="x")).apply_async()
        further = (add.s(1) | add.s(10)).delay(2)
        run_until_idle()
        assert (by_call.get(), by_bar.get(), further.get()) == (110, [13, {"word": "x"}], 13)

    def test_chain_in_a_chain_keeps_its_arguments_and_options(self) -> None:
        inner = (add.s(1) | add.s(10)).clone((2,)).set(queue="slow")
        result = (inner | add.s(100)).delay()
        run_until_idle()
        assert result.get() == 113
        assert rows().filter(queue_name="slow", task_type=add.name).count() == 1

    def test_group_has_a_result_for_each_call(self) -> None:
        result = group(add.s(n, n) for n in range(4)).apply_async()
        assert (len(result), result.ready()) == (4, False)
        run_until_idle()
        assert (result.get(), result.completed_count(), result.successful()) == ([0, 2, 4, 6], 4, True)

    def test_chord_calls_its_body_with_the_list_of_results(self) -> None:
        by_call = chord([add.s(n, n) for n in range(4)])(total.s())
        by_bar = (group(add.s(1, 1), add.s(2, 2)) | total.s() | add.s(100)).delay()
        nested = chain(add.s(1, 1), group(add.s(1), chain(add.s(2), add.s(3))), total.s()).delay()
        run_until_idle()
        assert (by_call.get(), by_bar.get(), nested.get()) == (12, 106, 10)

    def test_options_of_a_signature_are_those_of_its_row(self) -> None:
        chain(add.s(1, 2).set(queue="slow"), add.s(1).set(countdown=60, priority=5)).delay()
        run_until_idle()
        assert rows().filter(queue_name="slow", task_type=add.name).count() == 1
        assert rows().get(status=Status.SCHEDULED, task_type=add.name).priority == 5
        with pytest.raises(NotSupported, match="task_id"):
            chain(add.s(1), add.s(2).set(task_id="a")).delay()

    def test_ignored_result_reaches_the_next_call_of_a_chain(self) -> None:
        result = (tasks.forgetful.s() | add.s(1)).delay()
        run_until_idle()
        assert result.get() == 43

    def test_ignored_call_ends_its_chain(self) -> None:
        result = chain(tasks.ignored.s(), echo.s()).delay()
        run_until_idle()
        assert (result.state, tasks.calls) == ("FAILURE", [])
        assert chain().delay() is None

    def test_option_that_is_none_leaves_that_of_the_signature(self) -> None:
        add.s(1).set(priority=5).apply_async(priority=None)
        assert rows().get().priority == 5
        with pytest.raises(TypeError, match="chord"):
            group(add.s(1)).apply_async(link=add.s(1))

    def test_link_is_called_once_with_the_result(self) -> None:
        add.apply_async((1, 2), link=[add.s(10), echo.si("done")])
        run_until_idle()
        assert tasks.calls == [(("done",), {})]
        assert calls_of(add) == [[1, 2], [3, 10]]

    def test_link_error_is_called_with_the_error_or_with_the_id(self) -> None:
        result = broken.apply_async(link_error=[tasks.note_error.s("more"), tasks.note_id.s()])
        run_until_idle()
        assert tasks.calls == [(result.id, "broken", "more"), result.id]

    def test_error_callback_of_a_chain_is_called_for_the_call_that_failed(self) -> None:
        result = chain(add.s(1, 2), broken.si("in a chain"), add.s(1)).on_error(tasks.note_error.s()).delay()
        run_until_idle()
        assert [error for _, error in tasks.calls] == ["in a chain"]
        assert result.state == "FAILURE"
        with pytest.raises(ChordError, match="in a chain"):
            result.get()

    def test_error_callback_of_a_chord_is_called_once_for_its_header(self) -> None:
        header, body = [broken.s(), add.s(1), broken.s()], total.s().on_error(echo.si("failed"))
        started = [chord(header)(body), (group(header) | body).delay(), chain(chord(header, body), add.s(1)).delay()]
        started.append((group(header) | total.s()).apply_async(link_error=echo.si("failed")))
        run_until_idle()
        assert [result.state for result in started] == ["FAILURE"] * 4
        assert tasks.calls == [(("failed",), {})] * 4
        assert "link_error" not in header[0].options

    def test_linked_call_keeps_its_id_its_time_and_its_values(self) -> None:
        link = echo.s(Decimal("1.5")).set(eta=datetime(2020, 1, 1, tzinfo=UTC))
        linked = link.freeze()
        result = add.apply_async((1, 2), link=link)
        broken.apply_async(link_error=tasks.note_error.s(Decimal("2.5")))
        run_until_idle()
        assert (result.state, linked.state) == ("SUCCESS", "SUCCESS")
        assert tasks.calls[0][2] == Decimal("2.5")
        assert tasks.calls[1] == ((3, Decimal("1.5")), {})

    def test_signature_is_a_dict_that_tasks_can_take(self) -> None:
        result = echo.delay(add.s(1, y=2))
        run_until_idle()
        assert signature(result.get()[0])() == 3
        assert maybe_signature(dict(add.s(1))).clone((5,)).args == (5, 1)
        assert add.s(1, 2) == add.s(1, 2)
        assert repr(add.s(1, y=2)) == "tests.contrib.celery_tasks.add(1, y=2)"

    def test_map_and_chunks_call_the_task_for_each_value(self) -> None:
        mapped, starred = add.map([1, 2]).delay(), add.starmap([(1, 2), (3, 4)]).delay()
        chunks = add.chunks([(n, n) for n in range(5)], 2).apply_async()
        run_until_idle()
        assert (mapped.get(), starred.get()) == ([1, 2], [3, 7])
        assert chunks.get() == [[0, 2], [4, 6], [8]]

    def test_link_runs_once_although_its_attempt_runs_again(self) -> None:
        result = add.apply_async((1, 2), link=add.s(10))
        poll_once(result.id)
        rows().filter(pk=result.id).update(status=Status.READY, finished_at=None)
        run_until_idle()
        assert calls_of(add) == [[1, 2], [3, 10]]


@pytest.mark.usefixtures("eager")
class TestEager:
    def test_delay_runs_at_once_and_stores_nothing(self) -> None:
        result = add.delay(1, 2)
        assert (result.state, result.get(), result.successful()) == ("SUCCESS", 3, True)
        assert not rows().exists()

    def test_error_is_that_of_the_result_unless_it_propagates(self, settings: Any) -> None:
        result = broken.delay()
        assert (result.state, str(result.result), result.failed()) == ("FAILURE", "broken", True)
        with pytest.raises(ValueError, match="broken"):
            result.get()
        settings.CELERY_TASK_EAGER_PROPAGATES = True
        with pytest.raises(ValueError, match="broken"):
            broken.delay()

    def test_retries_do_not_wait(self) -> None:
        assert tasks.flaky.delay(2).get() == 2
        assert tasks.flaky.delay(9).state == "FAILURE"
        assert tasks.calls == [0, 1, 2, 0, 1, 2]

    def test_canvas_runs_at_once(self) -> None:
        assert chain(add.s(1, 2), add.s(10)).delay().get() == 13
        assert group(add.s(1), add.s(2)).delay().get() == [1, 2]
        assert chord([add.s(1), add.s(2)])(total.s()).get() == 3
        assert (group(add.s(1, 1), add.s(2, 2)) | total.s()).delay().get() == 6
        assert (add.s(1, 1) | group(add.s(1), add.s(2)) | total.s()).delay().get() == 7
        assert (tasks.ignored.s() | echo.s()).delay().get() is None
        assert add.apply_async((1,), link=echo.s("linked")).get() == 1
        assert tasks.calls == [((1, "linked"), {})]

    def test_request_says_that_it_is_eager(self) -> None:
        assert tasks.describe.delay().get()["direct"] is False
        assert tasks.calls[0].is_eager

    def test_options_are_checked_as_in_production(self) -> None:
        with pytest.raises(NotSupported, match="exchange"):
            add.apply_async((1,), exchange="e")


class TestSettings:
    def test_first_route_that_matches_gives_the_queue(self, settings: Any) -> None:
        settings.CELERY_TASK_ROUTES = {"tests.*.echo": {"queue": "echoes", "priority": 3}, "*.add": "sums"}
        echo.delay()
        add.delay(1)
        add.apply_async((1,), queue="mine")
        broken.delay()
        assert sorted(rows().values_list("queue_name", "priority")) == [
            *[("default", 0), ("echoes", 3), ("mine", 0), ("sums", 0)]
        ]

    def test_router_is_called_with_the_call(self, settings: Any) -> None:
        def by_first(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
            return {"queue": f"{task.name[-3:]}-{args[0]}"} if args else None

        settings.CELERY_TASK_ROUTES = (by_first, [("*", "rest")])
        add.delay(7)
        tasks.forgetful.delay()
        assert sorted(rows().values_list("queue_name", flat=True)) == ["add-7", "rest"]

    def test_default_queue_is_that_of_calls_without_one(self, settings: Any) -> None:
        settings.CELERY_TASK_DEFAULT_QUEUE = "usual"
        add.delay(1)
        assert rows().get().queue_name == "usual"

    def test_settings_come_from_the_site_and_from_code(self, settings: Any) -> None:
        own = Celery("shop", set_as_current=False, broker="redis://localhost")
        own.config_from_object(
            {"CELERY_TASK_ALWAYS_EAGER": True, "CELERY_TIMEZONE": "Europe/Berlin"}, namespace="CELERY"
        )
        own.conf.update(task_default_queue="mine", own_setting=1)
        own.conf["other"] = 2
        conf = own.conf
        assert (conf.task_always_eager, conf.timezone, conf.task_default_queue) == (True, "Europe/Berlin", "mine")
        assert (conf.own_setting, conf.other, conf.broker_url, conf.get("none")) == (1, 2, "redis://localhost", None)
        settings.CELERY_ALWAYS_EAGER = True  # the name of Celery 3
        assert current_app.conf.task_always_eager

    def test_beat_entries_become_schedules(self, settings: Any, own_schedules: None) -> None:
        settings.CELERY_TIMEZONE = "Europe/Berlin"
        settings.CELERY_BEAT_SCHEDULE = {
            "nightly": {"task": add.name, "schedule": crontab(minute=30, hour="2,4"), "args": (1, 2)},
            "often": {"task": "custom.name", "schedule": 10.0, "options": {"queue": "slow", "expires": 30}},
            "weekly": {
                "task": tasks.render.name,
                "schedule": crontab(0, 0, day_of_week="mon-fri"),
                "kwargs": {"context": {}},
            },
            "steady": {"task": "tests.multiply", "schedule": schedule(timedelta(minutes=5)), "args": [1, 2]},
            "celery.backend_cleanup": {"task": "celery.backend_cleanup", "schedule": 60},
        }
        current_app.finalize()
        by_name = {declared.name: declared for declared in declared_schedules.declared if "celery" in declared.location}
        assert [*by_name] == ["nightly", "often", "weekly", "steady"]
        assert by_name["nightly"].expression == jobqueue.Cron("30 2,4 * * *", "Europe/Berlin")
        assert by_name["often"].expression == jobqueue.Every(seconds=10)
        assert by_name["weekly"].kwargs == {"context_": {}}
        assert [[*declared.problems()] for declared in by_name.values() if declared.name != "weekly"] == [[], [], []]
        advance(timedelta(seconds=11))
        assert {row.queue_name for row in rows().filter(task_type="custom.name")} == {"slow"}

    def test_beat_entries_without_a_time_zone_are_in_that_of_the_site(self, settings: Any, own_schedules: None) -> None:
        settings.TIME_ZONE = "Europe/Berlin"
        settings.CELERY_BEAT_SCHEDULE = {"nightly": {"task": add.name, "schedule": crontab(0, 2), "args": (1,)}}
        current_app.finalize()
        by_name = {declared.name: declared for declared in declared_schedules.declared}
        assert by_name["nightly"].expression == jobqueue.Cron("0 2 * * *", "Europe/Berlin")

    def test_beat_entry_of_a_task_of_celery_is_skipped_with_a_warning(
        self, settings: Any, own_schedules: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.CELERY_BEAT_SCHEDULE = {"old": {"task": "shop.still_on_celery", "schedule": 60}}
        current_app.finalize()
        assert "beat_entry.skipped name=old task=shop.still_on_celery" in caplog.text
        unlucky = {"task": add.name, "schedule": crontab(day_of_month="13", day_of_week="fri")}
        settings.CELERY_BEAT_SCHEDULE = {"unlucky": unlucky}
        with pytest.raises(ImproperlyConfigured, match="unlucky"):
            current_app.finalize()

    def test_periodic_task_is_added_in_a_signal(self, own_schedules: None) -> None:
        own = Celery("shop", set_as_current=False)

        @own.on_after_configure.connect
        def setup_periodic_tasks(sender: Celery, **_: Any) -> None:
            sender.add_periodic_task(crontab(hour=7, minute=0), add.s(1, y=2), name="each morning")

        own.finalize()
        (declared,) = [entry for entry in declared_schedules.declared if entry.name == "each morning"]
        assert (declared.args, declared.kwargs) == ([1], {"y": 2})

    def test_solar_schedule_is_refused(self) -> None:
        with pytest.raises(NotSupported, match="solar"):
            solar("sunset", 0, 0)

    def test_app_of_a_project_needs_no_settings(self) -> None:
        code = """if True:
            from jobqueue.contrib.celery import Celery
            app = Celery("shop")
            app.config_from_object("django.conf:settings", namespace="CELERY")
            app.autodiscover_tasks()
            @app.task(bind=True)
            def debug_task(self): return self.request.id
            import django
            from django.conf import settings
            settings.configure(
                INSTALLED_APPS=["jobqueue"], CELERY_TASK_ALWAYS_EAGER=True,
                DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
                TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}},
            )
            django.setup()
            from jobqueue.declarations import registry
            print("shop.debug_task" in registry.all(), debug_task.delay().successful())
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("True True\n", "")


@pytest.fixture
def own_schedules() -> Any:
    """Forget the schedules that a test declares."""
    before = [*declared_schedules.declared]
    yield
    declared_schedules.declared[:] = before


def test_logger_of_tasks_is_a_logger() -> None:
    assert get_task_logger("shop.tasks").name == "shop.tasks"


def test_moment_of_the_end_is_that_of_the_row() -> None:
    result = add.delay(1, 2)
    run_until_idle()
    assert result.date_done is not None
    assert abs(result.date_done - datetime.now(UTC)) < timedelta(minutes=1)
    assert (result.args, result.kwargs, result.queue, result.name) == ([1, 2], {}, "default", add.name)

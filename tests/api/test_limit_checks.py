"""What `doctor`, `check` and the metrics say about limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core import checks

from jobqueue import Concurrency, FunctionTask, Rate, task
from jobqueue.declarations import checks as system_checks
from jobqueue.declarations import function
from jobqueue.engine import engine_for
from jobqueue.models import AdmissionRequest
from jobqueue.values.states import LimitKind
from tests.api.limited import rated, waiting
from tests.cli.commands import BOTH, jobqueue
from tests.factories import QueueFactory, ago
from tests.http.client import Shop, tasks_setting, token

pytestmark = BOTH
ACCOUNT = "tests.imports:account-42"


def work(account_id: int) -> None: ...


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FunctionTask[..., Any]]:
    """Declare a task for one test."""
    monkeypatch.setattr(function, "declared", {})
    monkeypatch.setattr("jobqueue.declarations.registry.declared", function.declared)

    def add(name: str = "tests.work", **options: Any) -> FunctionTask[..., Any]:
        declared: FunctionTask[..., Any] = task(name=name, **options)(work)
        function.declared[name] = declared
        return declared

    return add


def request(backend: str, seconds_ago: float, key: str = ACCOUNT, kind: str = "concurrency") -> None:
    AdmissionRequest.objects.using(backend).create(backend=backend, kind=kind, key=key, due_at=ago(seconds_ago))


def findings(backend: str) -> list[tuple[str, str]]:
    """Return level and text of the findings about limits."""
    entries = jobqueue("doctor", "--backend", backend, "--json").json
    words = ("limit ", "BLOCKED")
    return [
        (entry["level"], f"{entry['text']} {entry['advice']}")
        for entry in entries
        if any(word in entry["text"] for word in words)
    ]


class TestDoctor:
    @pytest.fixture(autouse=True)
    def executor(self, make_executor: Any) -> None:
        make_executor()

    def test_full_key_is_no_finding(self, backend: str) -> None:
        waiting(status="RUNNING", backend=backend)
        waiting(count=2, backend=backend)
        rated(backend=backend)
        request(backend, -30, "tests.call_api:api-7", "rate")

        ((level, text),) = findings(backend)
        assert (level, "no problem in 2 keys with BLOCKED tasks" in text) == ("ok", True)

    def test_key_that_was_changed_a_moment_ago_is_no_finding(self, backend: str) -> None:
        waiting(backend=backend)
        request(backend, 1)
        assert [level for level, _ in findings(backend)] == ["ok"]

    def test_key_that_nothing_will_admit_is_an_error(self, backend: str) -> None:
        waiting(backend=backend)
        rated(backend=backend)

        texts = findings(backend)

        assert [level for level, _ in texts] == ["error"] * 2
        assert (
            f"{ACCOUNT}: tasks are BLOCKED, none is active, and no executor will admit one."
            in texts[0][1] + texts[1][1]
        )
        assert f"jobqueue limits set {ACCOUNT} NUMBER --kind concurrency" in texts[0][1] + texts[1][1]

    def test_advice_for_a_forgotten_key_makes_executors_admit_it(self, backend: str) -> None:
        waiting(backend=backend)
        jobqueue("limits", "set", ACCOUNT, 1, "--kind", "concurrency", "--backend", backend)
        assert engine_for(backend).admissions.admit().queues == {"default": 1}

    def test_request_that_no_executor_answers_is_an_error(self, backend: str) -> None:
        waiting(backend=backend)
        request(backend, 60)

        ((level, text),) = findings(backend)

        assert level == "error"
        words = f"executors have not looked at the concurrency limit {ACCOUNT}, which has BLOCKED tasks, for 6"
        assert words in text  # and a digit: 60 s, or a few more on a busy machine

    def test_limit_used_up_by_a_paused_queue_is_a_warning(self, backend: str) -> None:
        QueueFactory.create(backend=backend, using=backend, name="paused", paused=True)
        waiting(status="READY", queue_name="paused", backend=backend)
        waiting(backend=backend)

        ((level, text),) = findings(backend)

        assert level == "warning"
        assert f"{ACCOUNT} is used up by READY tasks of queues that are paused" in text

    @pytest.mark.parametrize(
        ("holder", "words"),
        [
            ({"status": "AWAITING_CODE", "awaits_code_since": ago(120), "counts_while_waiting": True}, "has code for"),
            ({"status": "SCHEDULED", "wake_at": ago(-604_800), "attempts": 1, "counts_while_waiting": True}, "in 7 d"),
            ({"status": "RUNNING", "claimed_at": ago(7200), "executor_id": None}, "Running for 2 h"),
            (
                {"status": "SCHEDULED", "wake_at": ago(-60), "queue_name": "paused", "counts_while_waiting": True},
                "Queue paused is paused by anna",
            ),
        ],
        ids=["without code", "late retry", "running for hours", "paused"],
    )
    def test_key_held_for_long_is_a_warning_that_names_the_holder(
        self, backend: str, holder: dict[str, Any], words: str
    ) -> None:
        QueueFactory.create(backend=backend, using=backend, name="paused", paused=True)
        (held,) = waiting(backend=backend, **holder)
        waiting(backend=backend)

        ((level, text),) = findings(backend)

        assert level == "warning"
        assert f"{ACCOUNT} is used up by 1 task that cannot end soon" in text
        assert f"manage.py jobqueue show {held.pk}" in text
        assert words in text

    @pytest.mark.parametrize(
        "holder",
        [
            {"status": "AWAITING_CODE", "awaits_code_since": ago(-86_400), "counts_while_waiting": True},
            {"status": "SCHEDULED", "wake_at": ago(-600), "counts_while_waiting": True},
            {"status": "RUNNING", "claimed_at": ago(600)},
        ],
        ids=["code comes", "soon", "running for minutes"],
    )
    def test_key_held_for_a_short_time_is_no_finding(self, backend: str, holder: dict[str, Any]) -> None:
        waiting(backend=backend, **holder)
        waiting(backend=backend)

        assert [level for level, _ in findings(backend)] == ["ok"]

    @pytest.mark.parametrize(("ready", "levels"), [(100, ["warning"]), (99, ["ok"])])
    def test_rate_used_up_by_a_paused_queue_is_a_warning(self, backend: str, ready: int, levels: list[str]) -> None:
        QueueFactory.create(backend=backend, using=backend, name="paused", paused=True)
        rated(count=ready, status="READY", queue_name="paused", backend=backend)
        rated(backend=backend)
        request(backend, -1, "tests.call_api:api-7", "rate")

        assert [level for level, _ in findings(backend)] == levels


def test_doctor_without_executors_finds_nothing_about_limits(backend: str) -> None:
    waiting(backend=backend)
    assert findings(backend) == []


class TestSystemChecks:
    def check(self) -> list[checks.CheckMessage]:
        return system_checks.check_limits()

    @pytest.mark.parametrize(
        "options",
        [
            {"concurrency": Concurrency(1, key="account-{account_id}")},
            {"concurrency": Concurrency(5)},
            {"concurrency": Concurrency(5, key=lambda account_id: "one")},
            {"rate": Rate(10, per=1, key="stripe", shared="api")},
        ],
    )
    def test_sound_limit_is_no_finding(self, declare: Any, options: Any) -> None:
        declare(**options)
        assert self.check() == []

    def test_template_that_names_no_argument_is_a_warning(self, declare: Any) -> None:
        declare(concurrency=Concurrency(1, key="account"), rate=Rate(1, per=1, key="{{account_id}}"))
        messages = self.check()
        assert [message.id for message in messages] == ["jobqueue.W006"] * 2
        assert "'account' of its concurrency limit names no argument, so all tasks have one key" in messages[0].msg

    @pytest.mark.parametrize(
        ("first", "other"),
        [
            ({"concurrency": Concurrency(1, shared="a")}, {"concurrency": Concurrency(2, shared="a")}),
            ({"rate": Rate(10, per=1, shared="a")}, {"rate": Rate(10, per=60, shared="a")}),
            (
                {"concurrency": Concurrency(1, shared="a")},
                {"concurrency": Concurrency(1, shared="a", adjustable=False)},
            ),
        ],
    )
    def test_tasks_that_disagree_about_a_shared_limit_are_a_warning(self, declare: Any, first: Any, other: Any) -> None:
        declare("tests.one", **first)
        declare("tests.other", **other)
        (message,) = self.check()
        assert (message.id, message.level) == ("jobqueue.W007", checks.WARNING)
        assert "limit 'a' differently" in message.msg

    def test_tasks_that_share_a_limit_are_no_finding(self, declare: Any) -> None:
        declare("tests.one", concurrency=Concurrency(1, shared="a"), rate=Rate(1, per=1, shared="a"))
        declare("tests.other", concurrency=Concurrency(1, key="b", shared="a"))
        assert self.check() == []


class TestMetrics:
    @pytest.fixture
    def limits(self, client: Any, settings: Any) -> Callable[[], dict[tuple[str, str, str], tuple[int, float]]]:
        settings.TASKS = tasks_setting({"scraper": token(tasks=(), queues=()) | {"metrics": True}})

        def read() -> dict[tuple[str, str, str], tuple[int, float]]:
            rows = Shop(client).get("metrics.json").json()["limits"]
            return {
                (row["backend"], row["kind"], row["limit"]): (row["blocked"], row["oldest_blocked_seconds"])
                for row in rows
            }

        return read

    def test_metrics_count_blocked_tasks_by_limit(self, backend: str, limits: Any) -> None:
        waiting(count=2, enqueued_at=ago(120), backend=backend)
        waiting("tests.imports:account-7", enqueued_at=ago(600), backend=backend)
        waiting(status="RUNNING", backend=backend)
        rated(count=2, backend=backend)

        metrics = limits()

        assert metrics[backend, "concurrency", "tests.imports"] == (3, pytest.approx(600, abs=60))
        assert metrics[backend, "rate", "tests.call_api"] == (2, pytest.approx(60, abs=60))
        assert metrics[backend, "concurrency", "tests.reindex"] == (0, 0.0)

    def test_metrics_count_up_to_a_bound(self, backend: str, limits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.engine.limits.CAP", 2)
        waiting(count=3, backend=backend)
        assert limits()[backend, "concurrency", "tests.imports"][0] == 2

    def test_prometheus_has_the_same_numbers(self, backend: str, limits: Any, client: Any) -> None:
        waiting(count=2, backend=backend)
        text = Shop(client).get("metrics/").content.decode()
        labels = f'backend="{backend}",kind="concurrency",limit="tests.imports"'
        assert f"jobqueue_limit_blocked{{{labels}}} 2.0" in text
        assert f"jobqueue_limit_oldest_blocked_seconds{{{labels}}}" in text


def test_names_of_limits_are_read_in_order(backend: str) -> None:
    for key in ("b:1", "a-b:1", "a:1", "a:2", "B:1", "a;:1", "ä:1"):
        waiting(key, backend=backend)
    assert engine_for(backend).limits.names(LimitKind.CONCURRENCY) == ["B", "a-b", "a", "a;", "b", "ä"]

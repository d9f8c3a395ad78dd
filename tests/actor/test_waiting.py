"""Sleep and Suspend: timeouts, messages and wake."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobqueue import Done, PollContext, Sleep, Suspend, api, testing
from jobqueue.values.states import Status
from tests.actor.stage import Stage
from tests.fixtures import Options

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

HOUR = timedelta(hours=1)
WAITS: dict[str, Callable[[], Any]] = {
    "sleep for a time": lambda: Sleep(HOUR),
    "sleep until a moment": lambda: Sleep(timezone.now() + HOUR),
    "suspend with a timeout": lambda: Suspend(HOUR),
}


def waiting(wait: Callable[[], Any], seen: list[Any]) -> Callable[[PollContext[Any]], Any]:
    def poll(context: PollContext[Any]) -> Any:
        seen.append((context.timed_out, [message.body for message in context.inbox.take()]))
        return wait() if context.polls < 2 else Done()

    return poll


@pytest.mark.parametrize("wait", WAITS)
class TestWaitWithTimeout:
    def test_wait_ends_after_its_time(self, stage: Stage, wait: str) -> None:
        seen: list[Any] = []
        pk = stage.enter(waiting(WAITS[wait], seen))
        stage.run()
        assert stage.status(pk) == Status.SUSPENDED
        stage.advance(3590)
        assert stage.run() == []
        for seconds in (10.5, 3601):
            stage.advance(seconds)
            stage.run()

        assert seen == [(False, []), (True, []), (True, [])]
        assert stage.status(pk) == Status.SUCCESSFUL

    def test_message_ends_wait_and_is_no_timeout(self, stage: Stage, wait: str) -> None:
        seen: list[Any] = []
        pk = stage.enter(waiting(WAITS[wait], seen))
        stage.run()
        stage.send(pk, "early")
        stage.run()
        wake_at = stage.row(pk).wake_at
        assert wake_at is not None
        assert wake_at > timezone.now() + timedelta(minutes=59)
        stage.advance(3601)
        stage.send(pk, "late")
        stage.run()

        assert seen == [(False, []), (False, ["early"]), (False, ["late"])]

    @pytest.mark.parametrize("leaves_message", [False, True])
    def test_retry_after_timeout_keeps_timed_out(
        self, stage: Stage, wait: str, leaves_message: bool, monkeypatch: pytest.MonkeyPatch, options: Options
    ) -> None:
        options(POLL_INTERVAL=3600.0)  # does not look at the message before
        monkeypatch.setattr("jobqueue.executor.running.actor_runner.FIRST_WAIT_SECONDS", 3600.0)
        seen: list[Any] = []

        def poll(context: PollContext[Any]) -> Any:
            seen.append(context.timed_out)
            if len(seen) == 2:
                raise ValueError("failed")
            return WAITS[wait]() if context.polls == 0 else Done()

        pk = stage.enter(poll)
        if leaves_message:
            stage.send(pk)
        stage.run()
        for seconds in (3601, 11):
            stage.advance(seconds)
            stage.run()

        assert seen == [False, True, True]
        assert stage.status(pk) == Status.SUCCESSFUL


def test_wait_until_past_time_ends_at_once(stage: Stage) -> None:
    for wait in (Sleep(timedelta(-1)), Sleep(timezone.now() - HOUR), Suspend(timedelta(0))):

        def poll(context: PollContext[Any], wait: Any = wait) -> Any:
            return Done(context.timed_out) if context.polls else wait

        pk = stage.enter(poll)
        stage.run()
        assert stage.result(pk) is True


def test_suspend_without_timeout_waits_for_message(stage: Stage) -> None:
    pk = stage.enter(lambda context: Done(context.timed_out) if context.inbox.take() else Suspend())
    stage.run()
    stage.advance(365 * 86_400)
    assert stage.run() == []

    stage.send(pk)
    stage.run()
    assert stage.result(pk) is False


def test_api_wake_is_neither_message_nor_timeout(stage: Stage) -> None:
    seen: list[Any] = []
    pk = stage.enter(waiting(lambda: Sleep(HOUR), seen))
    stage.run()

    assert api.wake(pk) == 1
    testing.run_until_idle()

    assert seen[1] == (False, [])

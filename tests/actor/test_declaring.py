"""Declaring and enqueueing actors."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import override_settings

from jobqueue import Actor, Done, PollContext, testing
from jobqueue.conf.compat import PACKAGE, InvalidTask, TaskResultMismatch, TaskResultStatus
from jobqueue.declarations import registry
from jobqueue.declarations.checks import check_actors
from jobqueue.exceptions import InvalidArguments
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_class_keywords_set_task_options(stage: Stage) -> None:
    row = stage.row(UUID(actors.Declared.enqueue(1).id))

    assert (row.task_type, row.queue_name, row.priority, row.max_attempts) == ("tests.declared", "declared", 7, 9)
    assert actors.Declared.task.timeout == 30.0
    assert registry.get("tests.declared") is actors.Declared.task


def test_actor_inherits_keywords_of_base_class(stage: Stage) -> None:
    row = stage.row(UUID(actors.VeryPatient.enqueue(1).id))

    assert (row.task_type, row.queue_name, row.priority) == ("tests.actor.actors.VeryPatient", "slow", 0)
    assert (row.max_attempts, actors.VeryPatient.task.timeout) == (20, 60.0)
    assert not hasattr(actors.Patient, "task")


def test_poll_receives_checked_arguments_of_enqueue(stage: Stage) -> None:
    result = actors.Declared.using(key="k").enqueue(1, second="c")
    generating = actors.Generating.enqueue()

    assert len(testing.run_until_idle()) == 3
    assert stage.result(UUID(result.id)) == [1, "c", 1, f"{result.id}:0", "k"]
    assert stage.result(UUID(generating.id)) == 2
    with pytest.raises(InvalidArguments):
        actors.Declared.enqueue(1, third="c")
    with pytest.raises(InvalidArguments):
        actors.Declared.enqueue(object())


def test_using_overrides_class_keywords(stage: Stage) -> None:
    task = actors.Declared.using(priority=-3, queue_name="other", run_after=timedelta(hours=1), max_attempts=2)
    row = stage.row(UUID(task.enqueue(1).id))

    assert (row.queue_name, row.priority, row.max_attempts) == ("other", -3, 2)
    assert row.status == Status.SCHEDULED
    assert testing.run_until_idle() == []
    testing.advance(timedelta(hours=1))
    assert len(testing.run_until_idle()) == 1


def test_async_methods_enqueue_and_read_results(stage: Stage) -> None:
    async def play() -> list[Any]:
        results = await actors.Later.aenqueue_many([((n,), {}) for n in range(3)])
        await sync_to_async(testing.run_until_idle)()
        return [await actors.Later.aget_result(result.id) for result in results]

    results = async_to_sync(play)()
    assert [result.return_value for result in results] == [1, 2, 3]
    assert actors.Later.get_result(results[0].id) == results[0]
    with pytest.raises(TaskResultMismatch):
        actors.Declared.get_result(results[0].id)


@override_settings(TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"}})
@pytest.mark.usefixtures("own_registry")
def test_actor_with_other_backend_is_declared_but_not_polled() -> None:
    """Test settings may name backends of Django. The apps must still start."""

    def poll(self: Any, context: PollContext[Any]) -> Any: ...

    declared: Any = type("Elsewhere", (Actor,), {"__module__": __name__, "poll": poll})
    for result in (declared.enqueue(), declared.using(key="a").enqueue(), *declared.enqueue_many([((), {})])):
        assert result.status == TaskResultStatus.FAILED
        assert "Elsewhere is an actor. Enqueue it in a jobqueue backend" in result.errors[0].traceback


@dataclass
class RefuseByType:
    type: Literal["refuse"]


class Untagged(msgspec.Struct):
    pass


class TestRefused:
    def declare(self, keywords: Any = (), **body: Any) -> None:
        body = {"poll": lambda self, context: None, **body}
        type("Refused", (Actor,), {"__module__": __name__, "__qualname__": "Refused", **body}, **dict(keywords))

    def test_invalid_poll_is_refused(self) -> None:
        def without_context(self: Any, n: int) -> Any: ...

        async def async_generator(self: Any, context: PollContext[Any]) -> Any:
            yield Done()

        for poll, reason in (
            (None, "needs a method poll"),
            (without_context, "'context'"),
            (async_generator, "cannot yield"),
        ):
            with pytest.raises(InvalidTask, match=reason):
                self.declare(poll=poll)

    @pytest.mark.parametrize(
        ("state", "problem"),
        [
            (actors.Item, "missing a required argument: 'name'"),
            (actors.Publish, "missing a required argument: 'title'"),
            (actors.Publish | actors.Discard, "is not a callable object"),
        ],
    )
    def test_state_without_defaults_is_refused(self, state: Any, problem: str) -> None:
        with pytest.raises(InvalidTask, match=f"its fields need defaults: .*{problem}"):
            self.declare(State=state)

    def test_unqualified_annotation_of_state_is_refused(self) -> None:
        with pytest.raises(InvalidTask, match=r"State has an annotation 'Line', .* write 'Refused.Line'"):

            class Refused(Actor):
                @dataclass
                class Line:
                    price: int

                @dataclass
                class State:
                    lines: list[Line] = field(default_factory=list)  # type: ignore[name-defined]  # noqa: F821 - the unresolvable name

                def poll(self, context: PollContext[Any]) -> Any: ...

    def test_unknown_keyword_is_refused(self) -> None:
        with pytest.raises(
            TypeError, match=r"actor takes no keyword 'atomic'; it takes name, .*, concurrency, rate, abstract"
        ):
            self.declare({"atomic": True})

    @pytest.mark.parametrize(
        ("union", "reason"),
        [
            (actors.Item | actors.WithDataclass.State, ": .* a field such as .* and Item has none"),
            (actors.Reject | RefuseByType, ": Reject and RefuseByType have the same `type` 'refuse'"),
            (actors.Approve | actors.Reject | dict | Untagged, ""),
        ],
    )
    def test_ambiguous_message_union_is_refused(self, union: Any, reason: str) -> None:
        with pytest.raises(InvalidTask, match=f"Message cannot be read from JSON{reason}"):
            self.declare(Message=union)

    def test_call_of_actor_task_is_refused(self) -> None:
        with pytest.raises(TypeError, match="is an actor"):
            actors.Declared.task.call(1)


class Dangling(msgspec.Struct):
    price: int | Price = 0  # type: ignore[name-defined]  # noqa: F821 - the unresolvable name


def test_unresolvable_annotation_is_a_check_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_actors() == []

    monkeypatch.setattr(actors.WithStruct, "State", Dangling)

    (error,) = check_actors()
    assert error.id == "jobqueue.E009"
    assert "'tests.actor.actors.WithStruct' cannot be polled: State cannot be read from JSON" in error.msg
    assert "name 'Price' is not defined" in error.msg

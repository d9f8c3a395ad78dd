"""OPTIONS["ROUTES"]: options of tasks by patterns of their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jobqueue import Actor, Backoff, Concurrency, Rate, task
from jobqueue.backend import JobQueueBackend
from jobqueue.conf.compat import InvalidTask
from jobqueue.conf.options import options_for
from jobqueue.declarations.checks import check_routes
from jobqueue.declarations.new_task import shared_columns

pytestmark = pytest.mark.usefixtures("own_registry")

Route = Callable[[Any], None]


def send(account: int = 1) -> None: ...


def other() -> None: ...


@pytest.fixture
def routes(settings: Any) -> Route:
    def change(value: Any) -> None:
        backend = settings.TASKS["default"]
        options = {**backend.get("OPTIONS", {}), "ROUTES": value}
        settings.TASKS = {**settings.TASKS, "default": {**backend, "OPTIONS": options}}

    return change


def problems(value: Any, queues: Any = ()) -> list[str]:
    params = {"QUEUES": list(queues), "OPTIONS": {"ROUTES": value}}
    return [message.msg for message in JobQueueBackend("default", params).check()]


def test_first_pattern_that_matches_sets_the_options_of_a_task(routes: Route) -> None:
    wait = Backoff(base=9.0)
    routes(
        {
            f"{__name__}.se*": {"queue_name": "slow", "priority": 5, "max_attempts": 2, "timeout": 7, "backoff": wait},
            f"{__name__}.*": {"queue_name": "late", "priority": 9},
        }
    )
    declared = task(queue_name="default", max_attempts=8)(send)
    assert (declared.queue_name, declared.priority, declared.max_attempts) == ("slow", 5, 2)
    assert (declared.timeout, declared.backoff) == (7.0, wait)
    assert task(other).queue_name == "late"
    columns = shared_columns(declared, options_for("default"))
    assert (columns["queue_name"], columns["options"]) == ("slow", "{}")


def test_using_wins_over_a_route_and_a_copy_keeps_the_other_options(routes: Route) -> None:
    routes({"*": {"queue_name": "slow", "priority": 5}})
    copy = task(send).using(queue_name="fast").using(max_attempts=3)
    assert (copy.queue_name, copy.priority) == ("fast", 5)


def test_routes_come_from_an_environment_variable_as_json(routes: Route) -> None:
    text = json.dumps(
        {
            "*.send": {
                "concurrency": {"limit": 2, "key": "{account}"},
                "rate": {"limit": 10, "per": 60},
                "backoff": {"base": 3},
            }
        }
    )
    routes(json.loads(text))
    declared = task(send)
    assert declared.concurrency == Concurrency(2, key="{account}")
    assert declared.rate == Rate(10, per=60)
    assert declared.backoff == Backoff(base=3)
    assert problems(json.loads(text)) == []


def test_actors_names_and_aliases_are_routed(routes: Route) -> None:
    routes({"shop.*": {"queue_name": "shop"}, "old.*": {"queue_name": "old"}})
    names = {"poll": lambda self, context: None, "__module__": __name__}
    album: Any = type("Album", (Actor,), names, name="shop.Album")
    assert album.task.queue_name == "shop"
    assert task(aliases=["old.send"])(send).queue_name == "old"


def test_pattern_for_all_names_leaves_our_own_tasks_alone(routes: Route) -> None:
    from jobqueue.declarations.routes import options_by_route

    assert options_by_route({"*": {"queue_name": "slow"}}, ["jobqueue.batch"]) == {}
    assert options_by_route({"*": {"queue_name": "slow"}}, ["shop.send"]) == {"queue_name": "slow"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("shop.*", "ROUTES must be a dict of patterns"),
        ({"": {}}, "ROUTES['']: the pattern must be a text"),
        ({3: {}}, "ROUTES[3]: the pattern must be a text"),
        ({"*": "slow"}, "ROUTES['*'] must be a dict of options, not 'slow'"),
        ({"*": {"queue": "slow"}}, "ROUTES['*']: unknown option 'queue' (did you mean 'queue_name'?); options are"),
        ({"*": {"priority": "high"}}, "ROUTES['*']: priority must be a whole number"),
        ({"*": {"max_attempts": 0}}, "ROUTES['*']: max_attempts must be"),
        ({"*": {"concurrency": 2}}, "ROUTES['*']: concurrency must be a Concurrency"),
        ({"*": {"backoff": {"bas": 2}}}, "ROUTES['*']: backoff cannot be read: TypeError("),
        ({"*": {"queue_name": "slow"}}, "ROUTES['*']: queue_name 'slow' is not one of QUEUES: default"),
    ],
)
def test_wrong_routes_are_check_errors(value: Any, problem: str) -> None:
    (message,) = problems(value, ["default"])
    assert f"TASKS['default']['OPTIONS']: {problem}" in message


def test_pattern_without_a_task_is_a_warning(routes: Route) -> None:
    routes({"shop.*": {"priority": 1}, "*": {"priority": 2}, f"{__name__}.send": {"priority": 3}})
    task(send)
    messages = check_routes()
    assert [message.id for message in messages] == ["jobqueue.W010"] * 2
    assert "ROUTES['shop.*'] matches no task" in messages[0].msg


def test_option_that_cannot_be_read_makes_the_task_invalid(routes: Route) -> None:
    routes({"*": {"concurrency": {"limt": 1}}})
    with pytest.raises(InvalidTask, match="its options in ROUTES cannot be read"):
        task(send)

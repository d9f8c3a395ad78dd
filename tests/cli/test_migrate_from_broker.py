"""manage.py jobqueue migrate_from celery --broker: waiting messages of Celery become tasks."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import override_settings

from jobqueue.management.cli import migrate_from
from jobqueue.models import Task
from tests.cli.commands import BOTH, CommandResult, jobqueue
from tests.contrib.celery_tasks import add as add_of_shim
from tests.factories import now

pytestmark = BOTH
ADD, NAMED = "tests.tasks.add", "tests.stable"


class Redis:
    """The commands of Redis that the import uses, in memory."""

    def __init__(self) -> None:
        self.lists: defaultdict[str, list[bytes]] = defaultdict(list)
        self.unacked: dict[str, bytes] = {}
        self.bindings: set[bytes] = set()
        self.is_broken = False  # before the removal of imported messages

    def send(
        self,
        *args: Any,
        task: str = ADD,
        queue: str = "celery",
        pk: str | None = None,
        embedded: Any = None,
        **kwargs: Any,
    ) -> str:
        """Put a message into a queue as Celery does. Headers and properties are keywords with a capital letter."""
        names = ("Eta", "Expires", "Timelimit", "Tenant", "Ignore_result")
        headers = {name.lower(): kwargs.pop(name) for name in list(kwargs) if name in names}
        kind, priority = kwargs.pop("Kind", "application/json"), kwargs.pop("Priority", 0)
        pk = pk or str(uuid4())
        body = base64.b64encode(json.dumps([args, kwargs, embedded or {"chain": None}]).encode()).decode()
        envelope = {
            "body": body,
            "content-type": kind,
            "headers": {"task": task, "id": pk, "retries": 0, **headers},
            "properties": {"body_encoding": "base64", "priority": priority},
        }
        self.lists[f"{queue}\x06\x16{priority}" if priority else queue].insert(0, json.dumps(envelope).encode())
        self.bindings.add(f"{queue}\x06\x16\x06\x16{queue}".encode())
        return pk

    def ping(self) -> None: ...

    def keys(self, pattern: str) -> list[bytes]:
        return [b"_kombu.binding.celery"]

    def smembers(self, key: bytes) -> set[bytes]:
        return self.bindings

    def lrange(self, key: str, first: int, last: int) -> list[bytes]:
        return list(self.lists[key])

    def hvals(self, key: str) -> list[bytes]:
        return list(self.unacked.values())

    def eval(self, script: str, count: int, source: str, target: str, raw: bytes) -> int:
        assert script.index("lrem") < script.index("lpush")
        if raw not in self.lists[source]:
            return 0
        self.lists[source].remove(raw)
        self.lists[target].insert(0, raw)
        return 1

    def lrem(self, key: str, count: int, raw: bytes) -> None:
        if self.is_broken:
            raise ConnectionError("the connection is lost")
        self.lists[key].remove(raw)

    def waiting(self) -> int:
        return sum(map(len, self.lists.values()))


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Redis:
    client = Redis()
    monkeypatch.setattr(migrate_from, "connect", lambda url: client)
    return client


def run(*words: object) -> CommandResult:
    return jobqueue("migrate_from", "celery", "--broker", "redis://localhost", *words)


def result_of(pk: str, *words: object) -> dict[str, Any]:
    return next(message for message in run("--json", *words).json if message["id"] == pk)


def test_a_message_becomes_a_task_with_its_id_and_is_removed(redis: Redis) -> None:
    first, second = redis.send(1, b=2), redis.send(3, Priority=6)
    result = run()
    assert (result.code, result.err) == (0, "")
    assert "celery  tests.tasks.add  imported         2\n" in result.out
    assert result.out.endswith("2 imported in celery.\n")
    rows = {row.pk: row for row in Task.objects.all()}
    assert (rows[UUID(first)].args, rows[UUID(first)].kwargs) == ([1], {"b": 2})
    assert (rows[UUID(second)].task_type, rows[UUID(second)].priority) == (ADD, -6)
    assert redis.waiting() == 0


def test_dry_run_changes_nothing(redis: Redis) -> None:
    redis.send(1)
    result = run("--dry-run")
    assert result.out.endswith("Dry run, nothing was changed: 1 imported in celery.\n")
    assert (redis.waiting(), Task.objects.count()) == (1, 0)


def test_a_crash_after_the_commit_makes_no_task_twice(redis: Redis) -> None:
    pk = redis.send(1)
    redis.is_broken = True
    assert run().err == "Redis: the connection is lost"
    assert (redis.waiting(), Task.objects.count()) == (1, 1)
    redis.is_broken = False
    assert result_of(pk)["result"] == "imported before"
    assert (redis.waiting(), Task.objects.count()) == (0, 1)


def test_a_crash_before_the_commit_loses_no_message(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.send(1)
    redis.send(2)
    with monkeypatch.context() as patch:
        patch.setattr("jobqueue.backend.JobQueueBackend.enqueue_as", crash)
        with pytest.raises(ZeroDivisionError):
            run()
    assert (redis.waiting(), redis.lists["celery"], Task.objects.count()) == (2, [], 0)
    assert run().code == 0
    assert (redis.waiting(), Task.objects.count()) == (0, 2)


def crash(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


def test_messages_that_are_no_tasks_here_stay_and_are_listed(redis: Redis) -> None:
    reasons = {
        redis.send(1, Kind="application/x-python-serialize"): "its body is application/x-python-serialize, not JSON",
        redis.send(
            1, task="shop.gone"
        ): "no task here has this name or dotted path; if it was renamed, pass --map OLD=NEW",
        redis.send(1, embedded={"chain": [{}], "callbacks": [{}]}): (
            "it has callbacks, chain, which only Celery can call"
        ),
        redis.send({"__type__": "datetime", "__value__": "2030-01-01"}): (
            "only Celery, or a task of jobqueue.contrib.celery, can read its values"
        ),
        redis.send(): "add(): missing a required argument: 'a'",
    }
    redis.lists["celery"].append(b"[]")
    result = run()
    assert result.code == 1
    assert result.err == "6 messages of Celery cannot be imported. Let a worker of Celery run what stays in Redis."
    for pk, reason in reasons.items():
        assert f"celery: {pk}: {reason}.\n" in result.out
    assert "celery: a message without id: " in result.out
    assert (redis.waiting(), Task.objects.count()) == (6, 0)


def test_times_limits_and_queue_of_a_message_are_kept(redis: Redis) -> None:
    eta, expires = now() + timedelta(hours=1), now() + timedelta(hours=2)
    redis.send(1, queue="slow", Eta=eta.isoformat(), Expires=expires.isoformat(), Timelimit=[30, 20])
    redis.send(task=NAMED, pk="made-by-hand")
    assert run("--queue", "slow").out.endswith("1 imported in slow.\n")
    row = Task.objects.get()
    assert (row.queue_name, row.options["timeout"], row.status) == ("slow", 20, "SCHEDULED")
    assert row.expires_at == expires
    assert run().code == 0
    row = Task.objects.get(task_type=NAMED)
    assert (row.queue_name, row.metadata) == ("named", {"celery": {"id": "made-by-hand"}})


def test_headers_of_the_call_reach_the_task(redis: Redis) -> None:
    redis.send(1, task=add_of_shim.name, Tenant={"schema": "a"}, Ignore_result=True)
    assert run().code == 0
    row = Task.objects.get()
    assert row.metadata == {"celery": {"headers": {"tenant": {"schema": "a"}}, "ignore_result": True}}


@override_settings(CELERY_TASK_DEFAULT_QUEUE="main")
def test_a_task_of_the_shim_is_in_the_queue_of_its_calls(redis: Redis) -> None:
    redis.send(1, task=add_of_shim.name, queue="main")
    redis.send(1, queue="main")
    assert run().code == 0
    call = add_of_shim.delay(1).row
    assert call.queue_name == "main"
    queues = dict(Task.objects.exclude(pk=call.pk).values_list("task_type", "queue_name"))
    assert queues == {add_of_shim.name: "main", ADD: "default"}


def test_a_message_that_a_worker_takes_first_is_no_task(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    pk = redis.send(1)
    monkeypatch.setattr(redis, "eval", lambda *_: 0)
    assert result_of(pk)["result"] == "taken by a worker"
    assert Task.objects.count() == 0


def test_messages_that_a_worker_holds_are_listed(redis: Redis) -> None:
    pk = redis.send(1)
    redis.unacked["tag"] = json.dumps([json.loads(redis.lists["celery"].pop()), "", "celery"]).encode()
    result = run()
    assert f"celery: {pk}: a worker of Celery has it. Stop the worker to import it.\n" in result.out
    assert (result.code, Task.objects.count()) == (0, 0)


def test_map_gives_the_task_for_a_name_of_celery(redis: Redis) -> None:
    redis.send(1, task="old.add")
    assert run("--map", f"old.add={ADD}").code == 0
    assert Task.objects.get().task_type == ADD


@override_settings(CELERY_BROKER_TRANSPORT_OPTIONS={"global_keyprefix": "shop:"})
def test_the_prefix_of_keys_comes_from_the_settings(redis: Redis) -> None:
    redis.send(1, queue="shop:celery")
    assert run("--queue", "celery").out.endswith("1 imported in celery.\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["celery", "--broker", "redis://localhost"], "--broker needs the package redis: pip install redis."),
        (["celery", "--broker", "amqp://localhost"],
         "--broker takes a URL of Redis. If your broker is another one, let the workers of Celery empty it."),
        (["rq", "--broker", "redis://localhost"],
         "Only messages of Celery can be imported: migrate_from celery --broker URL."),
        (["celery", "--queue", "mail"], "--queue and --map are for --broker URL."),
    ],
)  # fmt: skip
def test_wrong_use_is_one_sentence(monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis", None)  # the import fails, as without the package
    result = jobqueue("migrate_from", *words)
    assert (result.code, result.err) == (1, sentence)

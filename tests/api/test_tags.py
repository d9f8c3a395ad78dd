"""Tags of tasks: stored, found in the admin and on the command line, and free for tasks without them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from jobqueue import api, task
from jobqueue.declarations import registry
from jobqueue.engine import Count
from jobqueue.models import Task
from jobqueue.operations.bulk.actions import REQUEUE
from jobqueue.operations.bulk.target import Target, perform_now
from jobqueue.operations.list import selection
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.selection import Selection
from tests import tasks
from tests.admin.pages import LIST_URL, status_of
from tests.cli.commands import BOTH, jobqueue

pytestmark = BOTH


def ship(order_id: int) -> None: ...


@pytest.fixture
def add(backend):
    def enqueue(*tags: str, **options: Any) -> Task:
        result = tasks.add.using(backend=backend, tags=tags, **options).enqueue(1, 2)
        return Task.objects.using(backend).get(pk=result.id)

    return enqueue


def ids_with_tag(backend: str, tag: str, **filters: str) -> list[Any]:
    return list(Selection(backend, {"tag": tag, **filters}).keys)


def test_tags_are_stored_once_in_their_order(add) -> None:
    assert add("import", "vip", "import").tags == ["import", "vip"]
    assert add().tags is None


@pytest.mark.usefixtures("own_registry")
def test_task_has_the_tags_of_its_declaration_unless_others_are_given(backend) -> None:
    declared = task(tags=["billing"], backend=backend)(ship)
    rows = Task.objects.using(backend)
    assert rows.get(pk=declared.enqueue(1).id).tags == ["billing"]
    assert rows.get(pk=declared.using(tags=["vip"]).enqueue(1).id).tags == ["vip"]
    assert rows.get(pk=declared.using(priority=5).enqueue(1).id).tags == ["billing"]
    assert registry.get(declared.task_type) is declared


def test_replaced_task_gets_the_new_tags(add) -> None:
    first = add("old", key="order-7")
    again = add("new", key="order-7", on_conflict="replace")
    assert (again.pk, again.tags) == (first.pk, ["new"])


def test_tag_finds_exactly_the_tasks_that_have_it(add, backend) -> None:
    vip, both = add("vip"), add("import", "vip")
    for other in ((), ("VIP",), ("vip2",), ('v"ip',)):
        add(*other)
    assert ids_with_tag(backend, "vip") == [both.pk, vip.pk]
    assert ids_with_tag(backend, "vip", status="READY") == [both.pk, vip.pk]
    assert ids_with_tag(backend, "vip", status="FAILED") == []
    assert ids_with_tag(backend, "%") == ids_with_tag(backend, '"') == []


def test_tag_of_many_tasks_is_searched_in_the_newest_of_a_status(add, backend, monkeypatch) -> None:
    made = [add("vip") for _ in range(5)]
    monkeypatch.setattr(selection, "CAP", 3)
    monkeypatch.setattr(selection, "WINDOW_OF_STATUS", 4)
    api.cancel([row.pk for row in made])
    tagged = Selection(backend, {"tag": "vip", "status": "CANCELLED"})
    assert len(list(tagged.keys)) == 4
    assert tagged.window == Count(4)
    target = Target.of(Selection(backend, {"tag": "vip"}), REQUEUE)
    assert target.bounds.number == 5
    assert str(perform_now(target)) == "Requeued 5 tasks."


@pytest.mark.parametrize("tag", ["naïve ü", 'quo"te', "a,b", "%s", "\\"])
def test_any_text_is_a_tag(add, backend, tag: str) -> None:
    row = add(tag)
    assert (row.tags, ids_with_tag(backend, tag)) == ([tag], [row.pk])


@pytest.mark.usefixtures("staff")
def test_search_for_a_tag_becomes_the_filter(add, client, backend) -> None:
    row = add("vip")
    add("other")
    response = client.get(LIST_URL, {"backend": backend, "q": "tag:vip"})
    assert response.url == f"{LIST_URL}?backend={backend}&tag=vip"
    assert [row.pk for row in client.get(response.url).context["cl"].result_list] == [row.pk]


def test_list_and_detail_show_tags_escaped(add, show, backend) -> None:
    row = add("<b>vip</b>")
    assert '<span class="jq-tag">&lt;b&gt;vip&lt;/b&gt;</span>' in show("task/")
    assert f'?tag=%3Cb%3Evip%3C%2Fb%3E&amp;backend={backend}">&lt;b&gt;vip&lt;/b&gt;</a>' in show(row)


def test_command_lists_and_shows_tags(add, backend) -> None:
    row = add("vip", "import")
    add("import")
    listed = jobqueue("list", "--backend", backend, "--tag", "vip", "--json").json["tasks"]
    assert [(entry["id"], entry["tags"]) for entry in listed] == [(str(row.pk), ["vip", "import"])]
    assert "Tags" in jobqueue("show", row.pk).out
    assert jobqueue("show", row.pk, "--json").json["tags"] == ["vip", "import"]


def test_command_cancels_and_requeues_tasks_with_a_tag(add, backend) -> None:
    row, other = add("vip"), add("import")
    assert jobqueue("cancel", "--backend", backend, "--tag", "vip", "--yes").out == "Cancelled 1 task.\n"
    result = jobqueue("requeue", "--backend", backend, "--status", "CANCELLED", "--tag", "vip", "--dry-run")
    assert result.out == "Would requeue 1 task (status CANCELLED, tag 'vip').\n"
    assert {status_of(row), status_of(other)} == {"CANCELLED", "READY"}


def test_tags_are_kept_by_a_requeue(add, backend) -> None:
    row = add("vip")
    api.cancel([row.pk])
    api.requeue([row.pk])
    row.refresh_from_db()
    assert (row.status, row.tags) == ("READY", ["vip"])


def test_value_that_is_no_list_of_texts_is_shown_without_tags(add, backend) -> None:
    row = add("vip")
    Task.objects.using(backend).filter(pk=row.pk).update(tags={"a": 1})
    assert read_rows(Task.objects.using(backend).all(), [row.pk], with_payload=True)[0].tags == []


def test_index_has_only_tasks_with_tags(add, backend) -> None:
    if connections[backend].vendor != "postgresql":
        pytest.skip("only PostgreSQL has the index")
    with connections[backend].cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'jobqueue_task_tags'")
        ((definition,),) = cursor.fetchall()
    assert definition.endswith("USING gin (tags jsonb_path_ops) WHERE (tags IS NOT NULL)")

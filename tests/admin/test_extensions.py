"""What a site adds to the admin: links and columns of tasks, and the tasks of an object on its page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.apps import AppConfig, apps
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import clear_url_caches, path

from jobqueue.admin.extensions import TaskLink, extensions, task_column, task_links
from tests.actor.test_docs import example
from tests.admin.pages import BOTH, LIST_URL
from tests.factories import make_user
from tests.tasks import add

pytestmark = BOTH
HEADING = "Show your own objects in the admin"


class Order(Group):
    """The order of the how-to, in a table that the tests have."""

    class Meta:
        proxy = True
        app_label = "shop"


@pytest.fixture(autouse=True)
def own_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "links", {})
    monkeypatch.setattr(extensions, "columns", {})


def test_links_and_columns_of_a_site_are_in_list_and_detail(make, show) -> None:
    @task_links
    def links(task: Any, arguments: Any) -> Iterator[TaskLink]:
        yield TaskLink(f"Order {arguments['order_id']}", f"/orders/{arguments['order_id']}/?a=1&b=2")

    @task_column("customer")
    def customer(task: Any, arguments: Any) -> Any:
        return f"<b>{arguments['customer']}</b>"

    row = make(kwargs={"order_id": 57, "customer": "anna"})
    for page in (show("task/"), show(row)):
        assert '<a href="/orders/57/?a=1&amp;b=2">Order 57</a>' in page
        assert "&lt;b&gt;anna&lt;/b&gt;" in page


def test_site_sees_masked_arguments_and_none_without_the_permission(make, client, backend) -> None:
    seen: list[Any] = []

    @task_column("seen")
    def remember(task: Any, arguments: Any) -> None:
        seen.append(dict(arguments))

    make(kwargs={"order_id": 57, "password": "hunter2"})
    for permissions in (("view_task", "view_payload"), ("view_task",)):
        client.force_login(make_user(*permissions))
        client.get(LIST_URL, {"backend": backend})
    assert [arguments.get("order_id") for arguments in seen] == [57, None]
    assert "hunter2" not in str(seen)


def test_error_in_a_function_of_the_site_is_logged_and_leaves_the_page(make, show, caplog) -> None:
    @task_links
    def broken(task: Any, arguments: Any) -> Iterator[TaskLink]:
        yield TaskLink("Order", arguments["missing"])

    row = make()
    assert "</html>" in show("task/")
    assert "</html>" in show(row)
    assert "extension.failed function=" in caplog.text


def test_columns_of_a_site_can_be_hidden(make, show, client, backend) -> None:
    task_column("customer")(lambda task, arguments: "anna")
    make()
    assert "anna" in show("task/")
    client.post(f"{LIST_URL}columns/", {"column": ["queue"], "query": f"backend={backend}"})
    assert "anna" not in show("task/")


@pytest.fixture
def order_page(settings: Any, client, backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The how-to's admin.py on a site of its own; GET the page of an order."""
    if backend != "default":
        pytest.skip("the page reads every database")
    shop: Any = type("Shop", (AppConfig,), {"path": "/nonexistent"})("shop", ModuleType("shop"))
    shop.apps, shop.models = apps, {}
    monkeypatch.setitem(apps.app_configs, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.models", SimpleNamespace(Order=Order))
    source = example(HEADING, 2).replace(example(HEADING, 1), "")
    exec(compile(source, "shop/admin.py", "exec"), {"__name__": "shop.admin"})
    urls = ModuleType("shop_urls")
    urls.urlpatterns = [path("admin/", admin.site.urls)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_urls", urls)
    settings.ROOT_URLCONF = "shop_urls"
    clear_url_caches()
    row = Order.objects.create(name="57")

    def get() -> str:
        client.force_login(make_user(is_superuser=True))
        response = client.get(f"/admin/shop/order/{row.pk}/change/")
        assert response.status_code == 200
        return str(response.content.decode())

    yield SimpleNamespace(get=get, pk=row.pk)
    admin.site.unregister(Order)
    clear_url_caches()


def test_how_to_page_of_an_order_shows_its_tasks(order_page) -> None:
    other = add.using(tags=["order-0"]).enqueue(1, 2)
    mine = [add.using(tags=[f"order-{order_page.pk}"]).enqueue(1, 2) for _ in range(12)]
    with CaptureQueriesContext(connection) as queries:
        page = order_page.get()
    assert all(f"/jobqueue/task/{result.id}/change/" in page for result in mine[2:])
    assert not any(f"/jobqueue/task/{result.id}/change/" in page for result in (*mine[:2], other))
    assert f'<a href="/admin/jobqueue/task/?tag=order-{order_page.pk}">Show all 12 tasks</a>' in page
    assert "jobqueue/admin.css" in page
    assert len([query for query in queries if 'FROM "jobqueue_task"' in query["sql"]]) == 2


def test_how_to_admin_links_a_task_to_its_order(order_page, make, client) -> None:
    row = make(kwargs={"order_id": order_page.pk, "customer": "anna"})
    order_page.get()
    page = client.get(LIST_URL).content.decode()
    assert f'<a href="/admin/shop/order/{order_page.pk}/change/">Order {order_page.pk}</a>' in page
    assert "anna" in page
    assert row.pk


def test_how_to_order_without_tasks_says_so(order_page) -> None:
    assert "No task." in order_page.get()

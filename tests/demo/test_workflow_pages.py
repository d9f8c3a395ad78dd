"""The tutorial and the recipes about workflows and batches work as printed."""

from __future__ import annotations

import re
import unittest
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.core import mail

import jobqueue
from jobqueue import testing
from jobqueue.models import JournalEntry, Task
from tests.demo import refused_workflows
from tests.demo.printed import CHECKOUT, PrintedSite

README, TUTORIAL, RECIPES = "README.md", "docs/workflows.md", "docs/how-to-workflows.md"


def example(page: str, heading: str, block: int = 1) -> str:
    """Return a Python block of a section, counted from 1."""
    section = (CHECKOUT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks: list[str] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return blocks[block - 1]


def run_example(page: str, heading: str, block: int = 1, **declared: Any) -> SimpleNamespace:
    """Return the names that a block declares. declared: those that a site would have declared before."""
    namespace: dict[str, Any] = {"__name__": "shop.tasks", **declared}
    exec(compile(example(page, heading, block), f"<{page}>", "exec", dont_inherit=True), namespace)
    return SimpleNamespace(**namespace)


class Calls(list[Any]):
    """A function of another system, that returns its number. failures: how many calls fail first."""

    def __init__(self, name: str, failures: int = 0) -> None:
        super().__init__()
        self.name, self.failures = name, failures

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self.append((args, kwargs))
        if len(self) <= self.failures:
            raise ConnectionError(f"{self.name} does not answer")
        return f"{self.name}-{len(self)}"


def names_of(task: Any) -> list[str]:
    """Return the names of the journal's entries."""
    return list(JournalEntry.objects.filter(task_id=task.id).order_by("id").values_list("name", flat=True))


@pytest.mark.slow
@pytest.mark.parametrize("database", ["PostgreSQL", "SQLite"], indirect=True)
def test_tutorial_works_as_printed(database: tuple[str, str], tmp_path: Path) -> None:
    PrintedSite(tmp_path, *database).follow_page(TUTORIAL)


@pytest.mark.django_db
class TestReadme:
    def test_checkout_ships_the_packed_items(self) -> None:
        shop = self.shop()
        result = shop.checkout.enqueue(1, ["book", "lamp"])
        testing.run_until_idle()
        jobqueue.send("order-1", shop.Shipped("T-1"))
        testing.run_until_idle()

        result.refresh()
        assert result.return_value == "8 kg with T-1"
        assert shop.refunds == []

    def test_checkout_refunds_an_order_without_a_courier(self) -> None:
        shop = self.shop()
        result = shop.checkout.enqueue(1, ["book"])
        testing.run_until_idle()
        testing.advance(timedelta(days=3))
        testing.run_until_idle()

        result.refresh()
        assert result.status == "FAILED"
        assert len(shop.refunds) == 1

    def shop(self) -> SimpleNamespace:
        tutorial = re.search(r"```python\n# shop/workflows.py\n(.*?)```", (CHECKOUT / TUTORIAL).read_text(), re.DOTALL)
        assert tutorial
        source = tutorial[1].replace("from shop.models import Order\n", "")
        namespace: dict[str, Any] = {"__name__": "shop.tasks"}
        exec(compile(source, f"<{TUTORIAL}>", "exec", dont_inherit=True), namespace)
        refunds = Calls("refund")
        namespace["refund"] = jobqueue.step(name="refund")(refunds)
        namespace["mark_as_shipped"] = jobqueue.step(name="mark_as_shipped")(Calls("marked"))
        return run_example(README, "A workflow", **namespace, refunds=refunds)


@pytest.mark.django_db
class TestApproval:
    def test_head_may_approve_after_the_manager_was_silent(self) -> None:
        ran = run_example(RECIPES, "Get an approval before a deadline")
        expense = ran.approve.enqueue(7)
        testing.run_until_idle()
        testing.advance(timedelta(days=3))
        testing.run_until_idle()
        jobqueue.send("expense-7", ran.Approved("ada"))
        testing.run_until_idle()

        expense.refresh()
        assert expense.return_value == "approved by ada"
        assert [message.to for message in mail.outbox] == [["manager@example.com"], ["head@example.com"]]

    def test_rejection_ends_it(self) -> None:
        ran = run_example(RECIPES, "Get an approval before a deadline")
        expense = ran.approve.enqueue(7)
        jobqueue.send("expense-7", ran.Rejected("ada", "too much"))
        testing.run_until_idle()

        expense.refresh()
        assert expense.return_value == "rejected by ada: too much"

    def test_it_expires_after_a_week(self) -> None:
        ran = run_example(RECIPES, "Get an approval before a deadline")
        expense = ran.approve.enqueue(7)
        for days in (0, 3, 4):
            testing.advance(timedelta(days=days))
            testing.run_until_idle()

        expense.refresh()
        assert expense.return_value == "expired"


@pytest.mark.django_db
class TestSaga:
    def test_failed_hotel_cancels_the_flight(self) -> None:
        airline = SimpleNamespace(book=Calls("flight", failures=2), cancel=Calls("cancelled", failures=1))
        hotel = SimpleNamespace(book=Calls("room", failures=8), cancel=Calls("cancelled"))
        trip = self.book(airline, hotel)

        assert trip.status == "FAILED"
        assert {kwargs["idempotency_key"] for _, kwargs in airline.book} == {airline.book[0][1]["idempotency_key"]}
        assert [args for args, _ in airline.cancel] == [("flight-3",), ("flight-3",)]
        assert (len(hotel.book), hotel.cancel) == (8, [])

    def test_failed_save_cancels_both_the_hotel_first(self) -> None:
        cancelled = Calls("cancelled")
        airline = SimpleNamespace(book=Calls("flight"), cancel=cancelled)
        hotel = SimpleNamespace(book=Calls("room"), cancel=cancelled)
        trip = self.book(airline, hotel, save=Calls("saved", failures=100))

        assert trip.status == "FAILED"
        assert [args for args, _ in cancelled] == [("room-1",), ("flight-1",)]

    def test_saved_trip_cancels_nothing(self) -> None:
        cancelled = Calls("cancelled")
        airline = SimpleNamespace(book=Calls("flight"), cancel=cancelled)
        hotel = SimpleNamespace(book=Calls("room"), cancel=cancelled)
        trip = self.book(airline, hotel)

        assert (trip.status, cancelled) == ("SUCCESSFUL", [])

    def book(self, airline: Any, hotel: Any, save: Any = None) -> Any:
        saved = SimpleNamespace(update=Calls("saved") if save is None else save)
        model = SimpleNamespace(objects=SimpleNamespace(filter=lambda **_: saved))
        heading = "Undo the first booking if the second fails"
        trip = run_example(RECIPES, heading, airline=airline, hotel=hotel, Trip=model).book_trip.enqueue(1)
        for _ in range(15):
            testing.run_until_idle()
            testing.advance(timedelta(hours=1, minutes=10))
        trip.refresh()
        return trip


@pytest.mark.django_db
def test_drafts_are_written_until_one_is_accepted() -> None:
    model = SimpleNamespace(complete=Calls("draft"))
    ran = run_example(RECIPES, "Let a person correct each draft", language_model=model)
    article = ran.article.enqueue("whales")
    testing.run_until_idle()
    for message in (ran.Comment("shorter"), ran.Comment("more whales"), ran.Accept()):
        jobqueue.send(article.id, message)
        testing.run_until_idle()

    article.refresh()
    assert article.return_value == "draft-3"
    assert [args[1] for args, _ in model.complete] == [[], ["shorter"], ["shorter", "more whales"]]


@pytest.mark.django_db
def test_subscription_is_charged_each_month_for_three_years() -> None:
    payments = SimpleNamespace(charge=Calls("charge"))
    ran = run_example(RECIPES, "Charge a subscription each month, for years", payments=payments)
    today = datetime.now(UTC).replace(day=1)
    subscription = ran.subscription.enqueue(7, "basic", today.replace(year=today.year - 3).isoformat())
    testing.run_until_idle()
    jobqueue.send("subscription-7", ran.ChangePlan("premium"))
    testing.run_until_idle()
    testing.advance(ran.next_month(today) - datetime.now(UTC) + timedelta(hours=1))
    testing.run_until_idle()
    jobqueue.send("subscription-7", ran.EndSubscription())
    testing.run_until_idle()

    subscription.refresh()
    assert [args[1] for args, _ in payments.charge] == ["basic"] * 37 + ["premium"]
    assert len({kwargs["idempotency_key"] for _, kwargs in payments.charge}) == 38
    assert subscription.return_value.startswith("ended after ")
    assert len(names_of(subscription)) < 10


@pytest.mark.django_db
def test_deployed_patch_leaves_old_workflows_alone() -> None:
    ran = run_example(RECIPES, "Deploy changed workflow code")
    parcel = ran.deliver.enqueue(1)
    testing.run_until_idle()

    parcel.refresh()
    assert parcel.return_value == "parcel-1"
    assert names_of(parcel) == ["charge", "patched-gift-wrap", "wrap", "ship"]


class Product:
    """A model of the site, without a table."""

    objects = SimpleNamespace(bulk_create=list)  # makes the objects

    def __init__(self, name: str, price: str) -> None:
        self.name, self.price = name, int(price)


@pytest.mark.django_db
class TestImport:
    def start(self, path: Path, prices: list[str]) -> tuple[SimpleNamespace, str]:
        path.write_text("".join(f"product-{number},{price}\n" for number, price in enumerate(prices)))
        ran = run_example(RECIPES, "Import a million rows in batches", Product=Product)
        return ran, ran.start_import(str(path), len(prices))

    def test_success_is_reported_once(self, tmp_path: Path) -> None:
        ran, batch = self.start(tmp_path / "products.csv", ["1"] * 3_500)
        assert ran.show_progress(batch) == "0 of 4 parts, 0 failed"
        testing.run_until_idle()

        assert ran.show_progress(batch) == "4 of 4 parts, 0 failed"
        assert [message.body for message in mail.outbox] == [f"{tmp_path / 'products.csv'} is imported."]

    def test_requeued_parts_make_it_a_success(self, tmp_path: Path) -> None:
        path = tmp_path / "products.csv"
        ran, batch = self.start(path, ["1"] * 2_500 + ["no price"])
        for _ in range(6):
            testing.run_until_idle()
            testing.advance(timedelta(hours=1))
        assert ran.show_progress(batch) == "2 of 3 parts, 1 failed"
        assert [message.body for message in mail.outbox] == [f"{path}: 1 of 3 parts failed."]

        path.write_text(path.read_text().replace("no price", "1"))
        jobqueue.requeue(Task.objects.failed().filter(parent_id=UUID(batch)).values_list("pk", flat=True))
        testing.run_until_idle()

        assert ran.show_progress(batch) == "3 of 3 parts, 0 failed"
        assert mail.outbox[-1].body == f"{path} is imported."


def read_refusals() -> dict[str, str]:
    """Return the table of refusals: what was written, and the error."""
    _, _, table = (CHECKOUT / TUTORIAL).read_text(encoding="utf-8").partition("| you wrote | the error |\n|---|---|\n")
    return dict(line.strip("| ").split(" | ", 1) for line in table.partition("\n\n")[0].splitlines())


@pytest.mark.django_db
@pytest.mark.parametrize(("written", "error"), read_refusals().items(), ids=lambda text: text[:30])
def test_refusal_has_the_documented_error(written: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_workflows, "runs", 0)
    workflow = next(workflow for row, workflow in refused_workflows.refused.items() if written.startswith(row))
    result = workflow.enqueue()
    for _ in range(2):
        testing.run_until_idle()
        testing.advance(timedelta(hours=2))

    message = Task.objects.get(pk=result.id).errors[-1]["message"]
    assert re.search(".*".join(map(re.escape, error.split("…"))), message, re.DOTALL), message


@pytest.mark.django_db
class TestCanvas:
    def test_chain_of_chords_publishes_the_sum(self) -> None:
        http = SimpleNamespace(get=lambda url: "three words " + url)
        ran = run_example(RECIPES, "Replace Celery's canvas", http=http)
        report = ran.report(["/a", "/b"])
        testing.run_until_idle()

        assert Task.objects.get(pk=report).return_value == "6 words for the news"

    def test_requeued_call_lets_the_chain_go_on(self) -> None:
        pages = Calls("page", failures=4)
        ran = run_example(RECIPES, "Replace Celery's canvas", http=SimpleNamespace(get=pages))
        report = ran.report(["/a"])
        for _ in range(4):
            testing.run_until_idle()
            testing.advance(timedelta(hours=1))
        assert Task.objects.get(pk=report).status == "FAILED"

        jobqueue.requeue(Task.objects.failed().filter(task_type="shop.tasks.fetch").values_list("pk", flat=True))
        testing.run_until_idle()
        assert Task.objects.get(pk=report).return_value == "1 words for the news"


@pytest.mark.django_db
def test_tests_of_the_approval_pass() -> None:
    approval = vars(run_example(RECIPES, "Get an approval before a deadline"))
    case = run_example(RECIPES, "Test workflows", **approval).ApprovalTests
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)

    assert (result.testsRun, result.errors, result.failures) == (2, [], [])

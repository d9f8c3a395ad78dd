"""The ten things that a person does in a week, from the overview, and how many clicks each takes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from jobqueue.models import Queue, Task
from tests.browser.webdriver import Browser
from tests.factories import PeriodFactory, QueueFactory, ScheduleFactory, TaskFactory, TickFactory, ago, error, now
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]),
    pytest.mark.slow,
]

MAX_CLICKS = 4
OVERVIEW = "/admin/jobqueue/"
ENTER = "\ue007"


class Person:
    """Clicks and types. Each click leads to another page. Keys count as no click."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.clicks = 0

    def click(self, selector: str) -> None:
        self.clicks += 1
        self.browser.wait_for(lambda: self.browser.find(selector))
        self.browser.follow(selector)

    def submit(self, selector: str, text: str) -> None:
        """Type a text and Enter."""
        self.type(selector, text)
        with self.browser.next_page():
            self.browser.type(selector, ENTER)

    def type(self, selector: str, text: str) -> None:
        self.browser.wait_for(lambda: self.browser.find(selector))
        self.browser.type(selector, text)

    def follow(self, address: str) -> None:
        """Click the first link whose address has a text."""
        self.click(f'#content a[href*="{address}"]')

    def sees(self, text: str) -> None:
        self.browser.wait_for(lambda: text in self.browser.text("#container"))


@pytest.fixture
def person(admin: Browser) -> Iterator[Person]:
    """A person who has opened the overview, and who may click four times."""
    person = Person(admin)
    yield person
    assert 0 < person.clicks <= MAX_CLICKS


def status(task: Task) -> str:
    return Task.objects.get(pk=task.pk).status


def has_status(task: Task, wanted: str) -> None:
    wait_until(lambda: status(task) == wanted, f"{wanted}, but it is {status(task)}")


def test_why_an_order_was_not_confirmed(person: Person) -> None:
    TaskFactory.create(failed=True, kwargs={"order_id": 57}, errors=[error("451 mailbox is full")])
    person.browser.open(OVERVIEW)
    person.follow("/jobqueue/task/")
    person.submit("#searchbar", "args.order_id:57")
    person.click("#result_list .field-name a")
    person.sees("451 mailbox is full")


def test_requeue_all_that_failed_while_a_server_was_down(person: Person) -> None:
    cause = {"cause": "0123456789abcdef"}
    tasks = [TaskFactory.create(failed=True, **cause) for _ in range(3)]
    person.browser.open(OVERVIEW)
    person.follow("/task/failures/")
    person.click(".jq-causes form button")
    person.click("input.default")
    for task in tasks:
        has_status(task, "READY")


def test_stop_a_runaway_import(person: Person) -> None:
    task = TaskFactory.create(running=True, task_type="shop.tasks.import_prices")
    person.browser.open(OVERVIEW)
    person.follow("status=RUNNING")
    person.click("#result_list .field-name a")
    person.click("button.jq-cancel")
    person.click("input.default")
    wait_until(lambda: Task.objects.get(pk=task.pk).cancel_requested_at, "a cancel")


def test_whether_tonights_report_ran(person: Person) -> None:
    schedule = ScheduleFactory.create(name="nightly-report")
    tick = TickFactory.create(schedule=schedule, tick_at=ago(3600))
    TaskFactory.create(id=tick.task_id, schedule_id=schedule.pk, successful=True)
    person.browser.open(OVERVIEW)
    person.follow("/jobqueue/schedule/")
    person.click("#result_list .field-title a")
    person.sees("Successful")


def test_what_is_slow(person: Person) -> None:
    PeriodFactory.create(scope="task", name="shop.tasks.import_prices", attempts=2, run_seconds=80.0)
    person.browser.open(OVERVIEW)
    person.click('[aria-labelledby="jq-slowest"] a')
    person.sees("shop.tasks.import_prices")
    assert "/task/summary/" in person.browser.run("return location.pathname")


def test_pause_a_queue(person: Person) -> None:
    QueueFactory.create(name="emails")
    person.browser.open(OVERVIEW)
    person.follow("/jobqueue/queue/")
    person.click('button[value="pause:emails"]')
    person.click("input.default")
    wait_until(lambda: Queue.objects.get(name="emails").paused_at, "a pause")


def test_change_the_limit_of_a_queue(person: Person) -> None:
    QueueFactory.create(name="emails")
    person.browser.open(OVERVIEW)
    person.follow("/jobqueue/queue/")
    person.click('button[value="limit:emails"]')
    person.submit("#id_max_running", "3")
    wait_until(lambda: Queue.objects.get(name="emails").max_running == 3, "a limit")


def test_run_a_scheduled_task_now(person: Person) -> None:
    task = TaskFactory.create(scheduled=True, wake_at=now() + timedelta(days=1))
    person.browser.open(OVERVIEW)
    person.follow("status=SCHEDULED")
    person.click("#result_list .field-name a")
    person.click("button.jq-wake")
    has_status(task, "READY")


def test_enqueue_a_task_by_hand(person: Person) -> None:
    person.browser.open(OVERVIEW)
    person.follow("/task/enqueue/")
    person.follow("?task=tests.tasks.greet")
    person.type("form.jq-schedule input[type=text], form.jq-schedule textarea", "anna")
    person.click("form.jq-schedule input.default")
    wait_until(lambda: Task.objects.filter(task_type="tests.tasks.greet").exists(), "a task")


def test_delete_an_old_failed_task(person: Person) -> None:
    task = TaskFactory.create(failed=True)
    person.browser.open(OVERVIEW)
    person.follow("status=FAILED")
    person.click("#result_list .field-name a")
    person.click("button.jq-delete")
    person.click("input.default")
    wait_until(lambda: not Task.objects.filter(pk=task.pk).exists(), "a deletion")

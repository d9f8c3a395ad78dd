"""Limits in a browser."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from jobqueue.models import Limit
from tests.api.limited import rated, started, waiting
from tests.browser.webdriver import Browser

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]), pytest.mark.slow]

LIST = "/admin/jobqueue/limit/"
LONG = "customer_with_a_long_name_" * 8


def page_of(key: str) -> str:
    return reverse("admin:jobqueue_limit_change", args=[quote(f"default:concurrency:{key}")])


@pytest.fixture
def key(transactional_db: None) -> str:
    """A key with a long name that has waiting tasks."""
    key = f"shop.tasks.{LONG}:{LONG}"
    waiting(key, 3)
    waiting(key, status="RUNNING")
    rated(count=2)
    started(count=2)
    return key


def test_pages_of_limits_fit_a_phone(admin: Browser, key: str) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    admin.command("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
    for address in (LIST, page_of(key)):
        admin.open(address)
        assert admin.run("return document.documentElement.scrollWidth") <= 390, address
        assert LONG[:40] in admin.text("#content")
    admin.open(LIST)
    assert "Blocked 3" in admin.text(".jq-limits")


def test_number_of_a_key_is_set_and_reset(admin: Browser, key: str) -> None:
    admin.open(page_of(key))
    admin.run("document.querySelector('[name=number]').value = '5'")
    admin.type("[name=reason]", "a large customer")
    admin.follow('.submit-row input[type="submit"]')

    assert "Limit set to 5." in admin.text(".messagelist")
    assert Limit.objects.get(key=key).number == 5
    admin.follow('[name="reset"] + button')

    assert "Limit reset." in admin.text(".messagelist")
    assert not Limit.objects.exists()

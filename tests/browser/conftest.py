"""A real browser. Without one the tests are skipped, with the name of the missing program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client

from tests.browser.webdriver import Browser, chromedriver, missing


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if problem := missing():
        pytest.skip(problem)
    with chromedriver(tmp_path_factory.mktemp("chromedriver") / "log") as address:
        yield address


@pytest.fixture
def browser(driver: str, tmp_path: Path) -> Iterator[Browser]:
    window = Browser(driver, tmp_path / "profile")
    try:
        yield window
    finally:
        window.quit()


@pytest.fixture
def admin(browser: Browser, live_server: object, transactional_db: None) -> Browser:
    """A window with a logged-in superuser."""
    user = get_user_model().objects.create_superuser("anna", password="secret")
    client = Client()
    client.force_login(user)
    browser.base = str(live_server)
    browser.open("/admin/login/")
    browser.set_cookie(settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value)
    return browser

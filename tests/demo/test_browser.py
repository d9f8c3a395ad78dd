"""The demo's pages in a real browser, under their content security policy."""

from __future__ import annotations

from typing import Any

import pytest

from demo_project.photos import fibonacci
from demo_project.photos.models import Album
from jobqueue.testing import poll_once, run_until_idle
from tests.browser.conftest import browser, driver  # noqa: F401 - fixtures
from tests.browser.webdriver import Browser
from tests.demo.pictures import picture

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LISTEN = """
window.violations = [];
document.addEventListener("securitypolicyviolation", e => violations.push(e.blockedURI));
window.isTheSamePage = true;
"""


@pytest.fixture
def visitor(browser: Browser, live_server: object, settings: Any) -> Browser:  # noqa: F811
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "demo_project.middleware.strict_policy"]
    browser.base = str(live_server)
    return browser


def open_to_watch(visitor: Browser, address: str) -> None:
    visitor.open(address)
    visitor.run(LISTEN)


def assert_never_reloaded(visitor: Browser) -> None:
    assert visitor.run("return window.isTheSamePage") is True
    assert visitor.run("return window.violations") == []


def nodes(visitor: Browser, state: str = "") -> int:
    return int(visitor.run("return document.querySelectorAll(arguments[0]).length", f"#tree a{state} circle"))


def test_tree_page_grows_without_reload(visitor: Browser) -> None:
    root = fibonacci.start(5, "quick")
    open_to_watch(visitor, f"/fibonacci/{root}/")
    assert nodes(visitor) == 1

    poll_once(root)
    visitor.wait_for(lambda: nodes(visitor) == 3)
    run_until_idle()

    visitor.wait_for(lambda: visitor.text("#tree-title") == "fib(5) = 5")
    assert nodes(visitor, ".done") == 9
    visitor.wait_for(lambda: "fib(5) = 5" in visitor.text("#runs"))
    assert_never_reloaded(visitor)


def test_album_page_follows_upload_to_contact_sheet(visitor: Browser, make_album) -> None:
    album = make_album(picture(), b"no picture")
    bad = album.photos.get(size=len(b"no picture"))
    open_to_watch(visitor, album.get_absolute_url())
    run_until_idle()
    visitor.wait_for(lambda: visitor.text(".album .badge") == "waiting for you")
    visitor.wait_for(lambda: "This is not a picture" in visitor.text(f"#photo-{bad.pk} .problem"))
    assert_never_reloaded(visitor)

    visitor.click('button[value="publish"]')
    visitor.wait_for(lambda: "will be published" in visitor.text(".messages"))
    visitor.run(LISTEN)
    run_until_idle()

    visitor.wait_for(lambda: visitor.text(".album .badge") == "published")
    visitor.wait_for(lambda: visitor.run("return document.querySelector('.sheet img').naturalWidth > 0"))
    assert_never_reloaded(visitor)


def test_photos_of_a_discarded_album_leave_the_page(visitor: Browser, make_album) -> None:
    album = make_album(picture(), picture())
    run_until_idle()
    visitor.open(album.get_absolute_url())
    visitor.click('button[value="discard"]')
    visitor.wait_for(lambda: "will be discarded" in visitor.text(".messages"))
    run_until_idle()

    visitor.wait_for(lambda: "are gone" in visitor.text(".album"))
    assert visitor.run("return document.querySelectorAll('.card').length") == 0
    assert Album.objects.get().state == Album.State.DISCARDED

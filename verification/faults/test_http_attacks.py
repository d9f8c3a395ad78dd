"""Attacks on the HTTP interface: misplaced tokens, and bodies that are too large or too deep."""

from __future__ import annotations

import gzip
import hmac
import logging
from typing import Any

import pytest
from django.test import Client

from jobqueue.models import Task
from tests.http.client import GREET, SECRET, Shop, tasks_setting

pytestmark = pytest.mark.django_db
BODY = {"task": GREET, "args": ["anna"]}


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    settings.TASKS = tasks_setting(MAX_PAYLOAD_BYTES=100_000)


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "Authorization"])
def test_token_in_the_address_in_the_body_or_in_a_cookie_is_none(client: Client, name: str) -> None:
    client.cookies[name] = SECRET
    response = client.post(f"/jobqueue/submit/?{name}={SECRET}", {**BODY, name: SECRET}, "application/json")

    assert response.status_code == 401
    assert not Task.objects.exists()


def test_token_is_in_no_log_and_no_answer(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for secret in (SECRET, f"{SECRET}-not"):
        shop = Shop(client, f"Bearer {secret}")
        for response in (shop.submit(), shop.submit(priority="x"), shop.post("submit/", "{"), shop.get("submit/")):
            assert SECRET not in response.content.decode() + str(response.headers)
    assert SECRET not in caplog.text


def test_tokens_are_compared_in_constant_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(first: str, second: str) -> bool:
        compared.append((len(first), len(second)))
        return first == second

    monkeypatch.setattr(hmac, "compare_digest", compare)

    assert Shop(client).submit().status_code == 201
    assert Shop(client, "Bearer x").submit().status_code == 401
    assert set(compared) == {(64, 64)}  # hashes, so that not even the length of the secret leaks


def test_packed_body_is_not_unpacked(client: Client) -> None:
    shop = Shop(client)
    bomb = gzip.compress(b'{"task": "' + b" " * 50_000_000 + b'"}')
    assert len(bomb) < 100_000

    for encoding in ("gzip", "deflate", "br", "gzip, gzip"):
        assert shop.post("submit/", bomb, **{"Content-Encoding": encoding}).status_code in (400, 415)
    assert not Task.objects.exists()

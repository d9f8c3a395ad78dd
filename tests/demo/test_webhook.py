from __future__ import annotations

import pytest
from django.urls import reverse

from demo_project.photos.models import Delivery

pytestmark = pytest.mark.django_db


@pytest.fixture
def call(client):
    def call(body: object = None, **event: str):
        return client.post(
            reverse("photos:webhook"), body if body is not None else event, content_type="application/json"
        )

    return call


def test_webhook_refuses_each_event_twice_then_accepts(call):
    answers = [call(event="a") for _ in range(4)]

    assert [answer.status_code for answer in answers] == [503, 429, 200, 200]
    assert answers[1]["Retry-After"] == "1"
    delivery = Delivery.objects.get(event="a")
    assert delivery.calls == 4
    assert delivery.accepted_at is not None


def test_webhook_counts_each_event_separately(call):
    call(event="a")

    assert call(event="b").status_code == 503


@pytest.mark.parametrize("body", ["", "[]", "[1]", "{}", "nonsense", "\x00"])
def test_webhook_refuses_invalid_event(call, body):
    assert call(body).status_code == 400
    assert not Delivery.objects.exists()


def test_webhook_takes_posts_only(client):
    assert client.get(reverse("photos:webhook")).status_code == 405

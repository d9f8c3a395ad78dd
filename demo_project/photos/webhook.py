"""The services that `notify` and `tell_followers` call. They are slow, and fail at first."""

from __future__ import annotations

import json
import time

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from demo_project.photos.models import Delivery

FOLLOWER_SECONDS = 0.25


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> HttpResponse:
    """Accept an event at its third call. The first gets 503, the second 429 with Retry-After."""
    try:
        event = str(json.loads(request.body)["event"])[:200]
    except (ValueError, KeyError, TypeError):
        return HttpResponse("Send an event as JSON.", status=400)
    with transaction.atomic():
        delivery, _ = Delivery.objects.select_for_update().get_or_create(event=event)
        delivery.calls += 1
        if delivery.calls > 2 and delivery.accepted_at is None:
            delivery.accepted_at = timezone.now()
        delivery.save()
    match delivery.calls:
        case 1:
            return HttpResponse("Temporarily down.", status=503)
        case 2:
            return HttpResponse("Too many calls.", status=429, headers={"Retry-After": "1"})
        case calls:
            return JsonResponse({"event": event, "calls": calls})


@csrf_exempt
@require_POST
def follower(request: HttpRequest, number: int) -> HttpResponse:
    """Answer after FOLLOWER_SECONDS."""
    time.sleep(FOLLOWER_SECONDS)
    return JsonResponse({"follower": number}, status=202)

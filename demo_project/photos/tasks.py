"""The tasks of an upload. Each may run more than once: a repetition changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict
from datetime import date, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Q, Sum
from django.utils import timezone

from demo_project.photos import files, http, imaging
from demo_project.photos.models import Album, Photo, Report, thumbnail_path
from jobqueue import Backoff, Concurrency, GiveUp, Rate, Retry, task

logger = logging.getLogger(__name__)

FOLLOWERS = 24
PROBE_SECONDS = 10
IMPATIENT = Backoff(base=1.0, cap=10.0)
CHECKED_PHOTOS, CHECK_SECONDS = 20, 0.4


def original_of(photo_id: str) -> bytes:
    """Read an uploaded file. An error of the disk is an ordinary error, so the task is retried."""
    try:
        photo = Photo.objects.get(pk=photo_id)
    except Photo.DoesNotExist:
        raise GiveUp("The photo was deleted before the task started.") from None
    with photo.original.open() as file:
        return bytes(file.read())


@task(queue_name="images", timeout=120)
def make_thumbnail(photo_id: str) -> dict[str, Any]:
    """Create the thumbnail. Not atomic, so that the reason of a failure is kept when the task fails."""
    photo = Photo.objects.filter(pk=photo_id)
    try:
        small = imaging.thumbnail(original_of(photo_id))
    except imaging.Unreadable as error:
        photo.update(problem=str(error))
        raise GiveUp(str(error)) from None
    path = thumbnail_path(photo_id)
    files.put(path, small)
    photo.update(thumbnail=path, problem="")
    return {"thumbnail": path, "bytes": len(small)}


@task(queue_name="images", timeout=120, atomic=True)
def extract_facts(photo_id: str) -> dict[str, Any]:
    try:
        facts = asdict(imaging.facts(original_of(photo_id)))
    except imaging.Unreadable as error:
        raise GiveUp(str(error)) from None
    Photo.objects.filter(pk=photo_id).update(**facts)
    return facts


@task(queue_name="webhooks", max_attempts=6, backoff=IMPATIENT, timeout=30, rate=Rate(20, per=1))
def notify(photo_id: str) -> dict[str, Any]:
    """
    Notify the webhook of a photo, which allows 20 calls a second.

    The event has a unique name, so a repeated call is harmless.
    """
    try:
        status = http.post(f"{settings.SITE_URL}/webhook/", {"event": f"photo {photo_id} uploaded"})
    except http.Refused as refused:
        if refused.retry_after is not None:
            raise Retry(str(refused), after=refused.retry_after) from None
        raise
    Photo.objects.filter(pk=photo_id, notified_at=None).update(notified_at=timezone.now())
    return {"status": status}


@task(queue_name="webhooks", max_attempts=6, backoff=IMPATIENT, timeout=30, concurrency=Concurrency(1))
async def tell_followers(album_id: str) -> dict[str, Any]:
    """Notify the followers side by side, of one album after the other."""
    began = time.monotonic()
    calls = (
        asyncio.to_thread(http.post, f"{settings.SITE_URL}/followers/{number}/", {"album": album_id})
        for number in range(1, FOLLOWERS + 1)
    )
    notified = len(await asyncio.gather(*calls))
    await Album.objects.filter(pk=album_id).aupdate(followers_notified=notified)
    return {"notified": notified, "seconds": round(time.monotonic() - began, 2)}


@task(queue_name="reports", atomic=True, allow_http=True, takes_context=True)
def nightly_report(context: Any, day: str | None = None) -> dict[str, Any]:
    """Report on a day. Its schedule passes none: the report is about the day before the tick, whenever it runs."""
    day_reported = date.fromisoformat(day) if day else timezone.localdate(context.scheduled_at) - timedelta(days=1)
    figures = Photo.objects.filter(uploaded_at__date=day_reported).aggregate(
        photos=Count("pk"),
        with_thumbnail=Count("pk", filter=~Q(thumbnail="")),
        with_problem=Count("pk", filter=~Q(problem="")),
        megabytes=Sum("size", default=0) / 1_000_000,
    )
    Report.objects.update_or_create(day=day_reported, defaults={"figures": figures})
    return figures


def report_soon() -> None:
    nightly_report.using(run_after=timedelta(seconds=5)).enqueue(timezone.localdate().isoformat())


@task(queue_name="reports", max_attempts=1, takes_context=True)
async def probe_archive(context: Any) -> dict[str, Any]:
    """Ask the archive whether it is up. Some answers are slow, so that the next tick is skipped, and some fail."""
    number = int(context.scheduled_at.timestamp()) // PROBE_SECONDS
    if number % 11 == 0:
        raise ConnectionError("The archive did not answer.")
    wait = PROBE_SECONDS + 2 if number % 5 == 0 else number % 3 / 2
    await asyncio.sleep(wait)
    return {"waited_seconds": wait}


@task(queue_name="reports", takes_context=True)
async def check_files(context: Any) -> dict[str, Any]:
    """Check that the files of the newest photos exist. It is slow: its page shows how far it is and what it logs."""
    photos = [photo async for photo in Photo.objects.order_by("-uploaded_at").only("name", "original")[:CHECKED_PHOTOS]]
    missing = []
    for number, photo in enumerate(photos):
        context.progress(number, len(photos), photo.name)
        if not await asyncio.to_thread(photo.original.storage.exists, str(photo.original.name)):
            logger.warning("The file of %s is missing.", photo.name)
            missing.append(photo.name)
        elif number % 5 == 0:
            logger.info("%d of %d checked, the last one %s", number + 1, len(photos), photo.name)
        await asyncio.sleep(CHECK_SECONDS)
    context.progress(len(photos), len(photos), f"{len(missing)} missing")
    logger.info("Checked all %d files.", len(photos))
    return {"photos": len(photos), "missing": missing}


@task(max_attempts=3, backoff=Backoff(base=0.5, cap=2.0))
def copy_to_old_archive() -> None:
    """Fail always, to show a failed task in the admin."""
    logger.info("Connecting to the old archive")
    logger.warning("No answer on port 873; it may be switched off")
    raise ConnectionError("The old archive was switched off for good.")

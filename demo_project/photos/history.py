"""
A past and a future for a new demo: the counters of a week, tasks that failed or that wait, and executors that are gone.

Only the past is written as rows, which a site never does. What waits is enqueued like any other task.
"""

from __future__ import annotations

import math
import platform
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import django
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from PIL import Image

from demo_project.photos import actors, tasks, uploads
from jobqueue import GiveUp, Rate, __version__
from jobqueue.engine import engine_for
from jobqueue.models import CounterDelta, CounterPeriod, Executor, Heartbeat, Schedule, Task
from jobqueue.values.causes import fingerprint
from jobqueue.values.counters import Length, Scope, bucket
from jobqueue.values.ids import first_id, new_id

BACKEND = "default"
MINUTE, QUARTER, HOUR = timedelta(minutes=1), timedelta(minutes=15), timedelta(hours=1)
DAY, WEEK = timedelta(days=1), timedelta(days=7)
ALBUM = {"dawn.jpg": 0, "noon.jpg": 90, "dusk.jpg": 180}
ENOUGH_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    What a task usually does. an_hour: attempts, of a task of visitors at noon. seconds: of an attempt.

    retried, failed: the parts of the attempts that failed, and whether another attempt followed.
    """

    task: Any
    an_hour: float
    seconds: float
    is_of_visitors: bool = True
    retried: float = 0.0
    failed: float = 0.0
    error: BaseException = field(default_factory=Exception)


USUAL = (
    Work(
        task=tasks.make_thumbnail,
        an_hour=200,
        seconds=0.3,
        failed=0.003,
        error=GiveUp("The photo was deleted before the task started."),
    ),
    Work(task=tasks.extract_facts, an_hour=200, seconds=0.5),
    Work(task=tasks.notify, an_hour=300, seconds=0.05, retried=0.3),
    Work(task=tasks.tell_followers, an_hour=40, seconds=0.8),
    Work(task=actors.Album.task, an_hour=160, seconds=0.01),
    Work(
        task=tasks.copy_to_old_archive,
        an_hour=2,
        seconds=0.02,
        retried=2 / 3,
        failed=1 / 3,
        error=ConnectionError("The old archive was switched off for good."),
    ),
    Work(task=tasks.check_files, an_hour=60, seconds=6, is_of_visitors=False),
    Work(
        task=tasks.probe_archive,
        an_hour=290,
        seconds=0.6,
        is_of_visitors=False,
        failed=1 / 11,
        error=ConnectionError("The archive did not answer."),
    ),
)


def fill() -> None:
    """Add a past and what waits, unless the demo has counted more than a day of the last week."""
    engine = engine_for(BACKEND)
    now = engine.db.now()
    counted = CounterPeriod.objects.filter(scope=Scope.BACKEND, length=Length.HOUR, start__gt=now - WEEK)
    if counted.count() > ENOUGH_HOURS:
        return
    with transaction.atomic():
        attempts = list(attempts_until(now))
        CounterDelta.objects.bulk_create(attempts, batch_size=1000)
        Task.objects.bulk_create(failures(attempts, since=now - DAY), batch_size=1000)
        for executor, heartbeat in executors_gone(now):
            executor.save(force_insert=True)
            heartbeat.save(force_insert=True)
        enqueue_waiting(now)
    while engine.counters.aggregate_counters():  # as executors do every few seconds
        pass


def attempts_until(now: datetime) -> Iterator[CounterDelta]:
    """Yield the counters of each hour of the last week, quarter of an hour of the last day, minute of the last hour."""
    chance = random.Random(2026)
    day_ago = (now - DAY).replace(minute=0, second=0, microsecond=0)
    hour_ago = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0) - HOUR
    # The last number: how many attempts differ. The others of a period wait and run as long as one of them.
    hours = [(day_ago - n * HOUR, HOUR, 4) for n in range(1, 6 * 24)]
    quarters = [(day_ago + n * QUARTER, QUARTER, 3) for n in range((hour_ago - day_ago) // QUARTER)]
    minutes = [(hour_ago + n * MINUTE, MINUTE, 1) for n in range((now - hour_ago) // MINUTE)]
    for start, length, samples in hours + quarters + minutes:
        for work in USUAL:
            activity = rhythm(start) if work.is_of_visitors else 1.0
            number = int(work.an_hour * (length / HOUR) * activity * chance.uniform(0.7, 1.3) + chance.random())
            for index in range(samples):
                if attempts := (number + index) // samples:
                    yield counted(work, start, attempts, activity, chance)


def rhythm(at: datetime) -> float:
    """Return how busy the visitors are: most at noon, least at night."""
    return 0.55 - 0.45 * math.cos(2 * math.pi * (at.hour + at.minute / 60) / 24)


def counted(work: Work, at: datetime, attempts: int, activity: float, chance: random.Random) -> CounterDelta:
    """Return the counters of attempts that waited and ran for the same time."""
    wait, run = chance.lognormvariate(math.log(0.005 + 0.1 * activity), 0.8), chance.lognormvariate(0, 0.4)
    draws = [chance.random() for _ in range(attempts)]
    dead = sum(draw < work.failed for draw in draws)
    retries = sum(work.failed <= draw < work.failed + work.retried for draw in draws)
    return CounterDelta(
        backend=BACKEND,
        queue_name=work.task.queue_name,
        task_type=work.task.task_type,
        at=at,
        submitted=attempts - retries,
        attempts=attempts,
        completed=attempts - retries - dead,
        failed=retries + dead,
        retries=retries,
        dead=dead,
        wait_bucket=bucket(wait),
        run_bucket=bucket(run * work.seconds),
        wait_seconds=wait * attempts,
        run_seconds=run * work.seconds * attempts,
    )


def failures(attempts: Iterable[CounterDelta], since: datetime) -> Iterator[Task]:
    """Yield the tasks that failed."""
    work_of = {work.task.task_type: work for work in USUAL}
    probes = Schedule.objects.filter(name="probe-archive").first()
    for counts in attempts:
        for number in range(counts.dead or 0 if counts.at >= since else 0):
            at = counts.at + timedelta(seconds=number * tasks.PROBE_SECONDS)
            task = failed_task(work_of[counts.task_type], at)
            if counts.task_type == tasks.probe_archive.task_type:
                task.schedule = probes
                task.options = {"schedule": "probe-archive", "scheduled_at": at.isoformat()}
            yield task


def failed_task(work: Work, at: datetime) -> Task:
    kind, message, attempts = type(work.error), str(work.error), work.task.max_attempts or 1
    path = f"{kind.__module__}.{kind.__qualname__}"
    error = {
        "attempt": attempts,
        "at": at.isoformat(),
        "executor": "photos-1.7",
        "exception_class_path": path,
        "message": message,
        "traceback": f"{kind.__qualname__}: {message}\n",
        "wait_seconds": 0.05,
        "run_seconds": work.seconds,
    }
    return Task(
        id=UUID(int=first_id(at).int | new_id().int % 2**80),  # begins with the time, as the list expects
        backend=BACKEND,
        queue_name=work.task.queue_name,
        task_type=work.task.task_type,
        args=[str(new_id())] if work.task is tasks.make_thumbnail else [],
        status=Task.Status.FAILED,
        rank=at,
        enqueued_at=at,
        started_at=at,
        last_attempted_at=at,
        finished_at=at + timedelta(seconds=work.seconds),
        attempts=attempts,
        max_attempts=attempts,
        errors=[error],
        cause=fingerprint(work.task.task_type, path, message),
        worker_ids=["photos-1.7"],
    )


def executors_gone(now: datetime) -> Iterator[tuple[Executor, Heartbeat]]:
    """Yield one executor that stopped, and one of an older version that was killed."""
    for name, version, state, beat_at in (
        ("photos-1.7", __version__, Executor.State.STOPPED, now - 2 * HOUR),
        ("photos-2.7", "0.0.9", Executor.State.RUNNING, now - 20 * MINUTE),
    ):
        executor = Executor(
            backend=BACKEND,
            name=name,
            host=name.partition(".")[0],
            pid=7,
            versions={"django": django.get_version(), "python": platform.python_version(), "jobqueue": version},
            slots=8,
            started_at=now - 2 * DAY,
        )
        yield executor, Heartbeat(executor=executor, at=beat_at, state=state)


def enqueue_waiting(now: datetime) -> None:
    """Enqueue tasks for tomorrow, reports of which one an hour may start, and an album that waits for a decision."""
    for delay in (DAY, DAY + HOUR):
        tasks.check_files.using(run_after=delay).enqueue()
    tasks.copy_to_old_archive.using(run_after=DAY).enqueue()
    one_an_hour = tasks.nightly_report.using(rate=Rate(1, per=HOUR))
    one_an_hour.enqueue_many([(((now - n * DAY).date().isoformat(),), {}) for n in range(1, 8)])
    uploads.receive([SimpleUploadedFile(name, picture(angle)) for name, angle in ALBUM.items()])


def picture(angle: int) -> bytes:
    """Return a JPEG of colours. The container image has no photographs."""
    lines, circle, file = Image.linear_gradient("L").rotate(angle), Image.radial_gradient("L"), BytesIO()
    Image.merge("RGB", (lines, circle, lines.rotate(90))).resize((640, 480)).save(file, "JPEG")
    return file.getvalue()

"""Tasks of a site that came from Celery, for the tests of the shim."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobqueue.contrib.celery import Celery, Task, app, current_task, shared_task
from jobqueue.contrib.celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

calls: list[Any] = []  # what the tasks of a test have noted


@shared_task
def add(x: int, y: int = 0) -> int:
    return x + y


@shared_task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task
def echo(*args: Any, **kwargs: Any) -> Any:
    calls.append((args, kwargs))
    return [*args, kwargs] if kwargs else [*args]


@shared_task
def render(template: str, context: dict[str, Any]) -> str:
    return template.format(**context)


@shared_task(bind=True)
def describe(self: Any) -> dict[str, Any]:
    request = self.request
    calls.append(request)
    return {
        "id": request.id,
        "name": self.name,
        "current": current_task.name,
        "queue": request.delivery_info["routing_key"],
        "direct": request.called_directly,
    }


@shared_task(bind=True, max_retries=2, default_retry_delay=30)
def flaky(self: Any, failures: int, **options: Any) -> int:
    calls.append(self.request.retries)
    try:
        if self.request.retries < failures:
            raise ConnectionError("down")
    except ConnectionError as error:
        raise self.retry(exc=error, **options) from error
    return int(self.request.retries)


@shared_task(bind=True, rate_limit="0/s")
def again(self: Any, x: int) -> int:
    if self.request.retries:
        return x
    raise self.retry(args=(x,), kwargs={}, countdown=0)


@shared_task(bind=True, max_retries=1)
def impatient(self: Any) -> None:
    raise self.retry(countdown=1)


@shared_task(
    autoretry_for=(ConnectionError,),
    dont_autoretry_for=(ConnectionRefusedError,),
    retry_backoff=5,
    retry_jitter=False,
    retry_backoff_max=7,
    retry_kwargs={"max_retries": 4},
)
def stubborn(kind: str = "ConnectionError") -> None:
    calls.append(kind)
    raise {"ConnectionError": ConnectionError, "Refused": ConnectionRefusedError, "Value": ValueError}[kind]("down")


@shared_task
def broken(message: str = "broken") -> None:
    raise ValueError(message)


@shared_task(ignore_result=True)
def forgetful() -> int:
    return 42


@shared_task
def ignored() -> None:
    raise Ignore


@shared_task(bind=True)
def failed_by_hand(self: Any) -> None:
    self.update_state(state="FAILURE", meta={"exc_type": "ValueError", "exc_message": "no such file"})
    raise Ignore


@shared_task
def rejected() -> None:
    raise Reject("no", requeue=False)


@shared_task(bind=True)
def reporting(self: Any) -> None:
    self.update_state(state="PROGRESS", meta={"current": 3, "total": 10, "since": timedelta(0).days})
    calls.append(self.AsyncResult(self.request.id))


@shared_task
def joining() -> Any:
    return add.delay(1, 2).get(timeout=0)


@shared_task(soft_time_limit=0.2, time_limit=30)
def slow() -> str:
    try:
        while True:
            sum(range(1000))
    except SoftTimeLimitExceeded:
        return "in time"


@shared_task(rate_limit="10/m", queue="slow", priority=7, expires=60)
def limited() -> None: ...


@shared_task
def note_error(request: Any, error: Exception, traceback: Any, *more: Any) -> None:
    calls.append((request.id, str(error), *more))


@shared_task
def note_id(task_id: str) -> None:
    calls.append(task_id)


class Base(Task):
    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        calls.append("before_start")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        calls.append(("on_success", retval))

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        calls.append(("on_failure", str(exc), "ValueError" in str(einfo)))

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        calls.append(("after_return", status))


@shared_task(base=Base)
def based(fails: bool = False) -> str:
    if fails:
        raise ValueError("based")
    return "done"


@shared_task(base=Base, bind=True)
def based_again(self: Any) -> str:
    if not self.request.retries:
        raise self.retry(countdown=0)
    return "done"


class Multiply(Task):
    name = "tests.multiply"

    def run(self, x: int, y: int) -> int:
        return x * y


multiply = app.register_task(Multiply())
own_app = Celery("own", set_as_current=False)


@own_app.task(name="custom.name")
def named() -> str:
    return "named"

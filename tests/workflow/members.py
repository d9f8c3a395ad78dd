"""Tasks that are members and callbacks of batches, and links of chains."""

from __future__ import annotations

from typing import Any

from jobqueue import Batch, Concurrency, task

broken: set[Any] = set()  # numbers for which work() fails
called: list[tuple[str, Any]] = []  # names of callbacks, with their first argument


@task(max_attempts=1)
def work(number: Any) -> Any:
    if number in broken:
        raise ValueError(f"{number} is broken")
    return number


@task(max_attempts=1, concurrency=Concurrency(1))
def work_alone(number: int) -> int:
    return number


@task
async def work_later(number: int) -> int:
    return number


@task
def split(batch_id: str, number: int) -> int:
    """Add as many members as a number says, each of which adds one less."""
    Batch.get(batch_id).add_many(split, [((batch_id, number - 1), {})] * number)
    return number


@task
def succeeded(batch: dict[str, Any], *more: Any) -> None:
    called.append(("on_success", batch))


@task
def failed(batch: dict[str, Any], *more: Any) -> None:
    called.append(("on_failure", batch))


@task
def ended(batch: dict[str, Any], *more: Any) -> None:
    called.append(("on_end", batch))


@task
def take_nothing() -> None:
    called.append(("take_nothing", None))


@task
def add(first: int, second: int = 0) -> int:
    return first + second


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)

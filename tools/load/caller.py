"""HTTP clients of the site. Several run at once, each with its own connection."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

TRIES = 6  # of one submission; the idempotency key makes a repetition safe
CALL_SECONDS = 30.0
REPEATED = 10  # one of so many submissions is sent twice


@dataclass(frozen=True, slots=True)
class PlannedSubmission:
    number: int
    priority: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a submission. status: of the last request, 0 without an answer; seconds: of that request."""

    number: int
    status: int
    task_id: str
    seconds: float
    tries: int


def plan(count: int, seed: int) -> list[PlannedSubmission]:
    """Return `count` submissions of mixed priorities. Some appear twice, at random places."""
    chance = random.Random(seed)
    submissions = [PlannedSubmission(number, chance.randint(-10, 10)) for number in range(count)]
    submissions += chance.sample(submissions, count // REPEATED)
    chance.shuffle(submissions)
    return submissions


class Callers:
    """Submit from several threads. Calls of on_answer do not overlap."""

    def __init__(self, port: int, token: str, run: str, on_answer: Callable[[Answer], None]) -> None:
        self._port, self._run, self._on_answer = port, run, on_answer
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._lock = threading.Lock()

    def submit(self, submissions: Sequence[PlannedSubmission], concurrency: int) -> None:
        rest = deque(submissions)

        def take_turns() -> None:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=CALL_SECONDS)
            with suppress(IndexError):  # no submission is left
                while True:
                    answer = self._call(connection, rest.popleft())
                    with self._lock:
                        self._on_answer(answer)
            connection.close()

        with ThreadPoolExecutor(concurrency) as pool:
            try:
                for turn in [pool.submit(take_turns) for _ in range(concurrency)]:
                    turn.result()
            finally:
                rest.clear()  # after a Ctrl-C

    def _call(self, connection: HTTPConnection, submission: PlannedSubmission) -> Answer:
        body = json.dumps(
            {
                "task": "load.flip",
                "args": [submission.number],
                "priority": submission.priority,
                "idempotency_key": f"{self._run}-{submission.number}",
            }
        )
        status, task_id, began = 0, "", 0.0
        for tries in range(1, TRIES + 1):
            began = time.monotonic()
            try:
                connection.request("POST", "/jobqueue/submit/", body, self._headers)
                response = connection.getresponse()
                status, value = response.status, json.loads(response.read())
            except (OSError, HTTPException, ValueError):
                connection.close()
                status = 0
            if status in (200, 201):
                task_id = value["id"]
                break
            time.sleep(0.1 * tries)
        return Answer(submission.number, status, task_id, time.monotonic() - began, tries)

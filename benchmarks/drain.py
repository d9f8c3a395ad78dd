"""
Measure how many no-op jobs a second the workers do while jobs are waiting.

All jobs are enqueued before the workers start. The clock starts when all workers are ready and a job is done. It runs
for a fixed time, or until all jobs are done. The rows show how many were done, in Redis the length of the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg

from benchmarks import cpu
from benchmarks.arena import Arena, NotMeasured, PeerDatabase, scalar
from benchmarks.contestants import Contestant
from benchmarks.rounds import Sample

SETTLE_SECONDS = 0.3
START_SECONDS = 1.0  # longest time from the first job to the start of the clock
FIRST_SECONDS = 30.0  # longest wait for the first job
CHECK_SECONDS = 0.1
FEWEST_JOBS = 20_000  # with fewer rows, PostgreSQL sorts the table for each claim of some peers

Used = tuple[float, float, float]  # CPU seconds: workers, PostgreSQL, broker

COUNT = "SELECT count(*), max(at) FROM ({finished}) f WHERE at < %(until)s"
ANY = "SELECT EXISTS ({finished})"
TENTHS = """
    WITH jobs AS (SELECT at, row_number() OVER (ORDER BY at) AS n, count(*) OVER () AS jobs FROM ({finished}) f),
    marks AS (
        SELECT min(at) AS first, min(at) FILTER (WHERE n > jobs * 0.1) AS tenth,
            max(at) FILTER (WHERE n <= jobs * 0.9) AS ninth, max(at) AS last
        FROM jobs WHERE at < %(until)s
    )
    SELECT extract(epoch FROM tenth - first) / nullif(extract(epoch FROM last - ninth), 0) FROM marks
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """
    A contestant in a condition.

    condition, others: the kind and number of other rows in the table. flags: of the contestant's command.
    pinned: another session keeps a snapshot open, taken before the jobs are enqueued, until all are done.
    late: enqueue when all workers are ready. Many workers start so slowly that the first ones would do all jobs.
    """

    arena: Arena
    contestant: Contestant
    seconds: float
    condition: str = ""
    others: int = 0
    flags: tuple[str, ...] = ()
    jobs: int = 0
    pinned: bool = False
    late: bool = False

    @property
    def database(self) -> PeerDatabase:
        label = f"{self.condition} {self.others}" if self.others else ""
        return self.arena.database(self.contestant.peer, label)

    def __call__(self) -> Sample:
        self.arena.check(self.contestant)
        self._refill()
        return self._pinned() if self.pinned else self._measured()

    def _measured(self) -> Sample:
        began = datetime.now(UTC) if self.database.is_in_redis else self.database.now()
        with self.database.at_work(self.contestant, *self.flags) as pids:
            if self.late:
                self.database.fill(self._wanted, self.contestant.rows, quietly=False)
            self._wait_for_first_job(began)
            time.sleep(START_SECONDS if self.late else SETTLE_SECONDS)
            before = self._used(pids)
            watched = self._watch()
            after = self._used(pids)
        return self._sample(watched, before, after)

    def _pinned(self) -> Sample:
        """Enqueue after all workers are ready, so that as many work on the first tenth as on the last."""
        with pinned_snapshot(self.database), self.database.at_work(self.contestant, *self.flags) as pids:
            time.sleep(SETTLE_SECONDS)
            before, began = self._used(pids), self.database.now()
            self.database.fill(self._wanted, self.contestant.rows, quietly=False)
            self._wait_for_first_job(began)
            watched = self._watch()
            after = self._used(pids)
        assert isinstance(watched, Window)
        return self._sample(replace(watched, since=began), before, after)

    @property
    def _wanted(self) -> int:
        busy = max(self.seconds, self.contestant.min_seconds) + SETTLE_SECONDS + START_SECONDS
        fewest = 0 if self.database.is_in_redis else FEWEST_JOBS
        return self.jobs or max(fewest, int(self.contestant.rate * self.contestant.processes * busy))

    def _refill(self) -> None:
        """Enqueue the jobs. The rows of a condition stay for all rounds. Without one, empty the tables first."""
        database, changed = self.database, self.contestant.rows
        if not self.others:
            database.clear()
        elif not is_filled(database):
            database.fill(self.others, database.store.conditions[self.condition])
            prepare(database, self.condition)
        if self.late:
            return  # a vacuum of an empty table would let PostgreSQL plan for one
        if self.pinned:
            database.settle()
            return
        have = database.takeable() if self.others else 0
        if self.condition == "100 queues":
            changed = database.store.conditions[self.condition]
        database.fill(max(self._wanted, self.others if self.condition == "waiting" else 0) - have, changed)
        database.settle()

    def _wait_for_first_job(self, began: datetime) -> None:
        deadline = time.monotonic() + FIRST_SECONDS
        with has_begun(self.database, began) as is_begun:
            while not is_begun():
                if time.monotonic() > deadline:
                    raise NotMeasured(f"{self.contestant.name}: no job was done in {FIRST_SECONDS:g} s")
                time.sleep(CHECK_SECONDS / 2)

    def _watch(self) -> Watched:
        watch = watch_redis if self.database.is_in_redis else watch_rows
        deadline = time.monotonic() + max(self.seconds, self.contestant.min_seconds)
        return watch(self.database, lambda left: not left or (not self.pinned and time.monotonic() >= deadline))

    def _sample(self, watched: Watched, before: Used, after: Used) -> Sample:
        """Count the jobs after the workers have ended: some peers write results in bursts."""
        drained = watched if isinstance(watched, DrainedJobs) else count_rows(self.database, watched)
        if not drained.jobs:
            raise NotMeasured(f"{self.contestant.name}: no job was done")
        workers, server, broker = (now - then for now, then in zip(after, before, strict=True))
        return Sample(
            count=drained.jobs,
            seconds=drained.seconds,
            worker_seconds=workers,
            server_seconds=server,
            broker_seconds=broker,
            last_tenth=drained.last_tenth,
        )

    def _used(self, pids: list[int]) -> Used:
        return (
            sum(cpu.seconds_of_tree(pid) for pid in pids),
            self.arena.cpu_seconds(),
            self.arena.broker_seconds(),
        )


@dataclass(frozen=True, slots=True)
class DrainedJobs:
    jobs: int
    seconds: float
    last_tenth: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The measured period, in the database's time. has_no_work_left: all jobs were done at its end."""

    since: datetime
    until: datetime
    has_no_work_left: bool


Watched = DrainedJobs | Window


def watch_rows(database: PeerDatabase, is_over: Callable[[int], bool]) -> Watched:
    since, left = database.now(), 1
    with database.connected() as connection:
        while not is_over(left):
            time.sleep(CHECK_SECONDS)
            left = int(scalar(connection, f"SELECT EXISTS (SELECT {database.store.left})::int"))
    return Window(since, database.now(), has_no_work_left=not left)


def count_rows(database: PeerDatabase, window: Window) -> DrainedJobs:
    parameters = {"since": window.since, "until": window.until}
    finished = database.store.finished
    with database.connected() as connection:
        row = connection.execute(COUNT.format(finished=finished), parameters).fetchone()
        assert row is not None
        jobs, last = row
        tenths = scalar(connection, TENTHS.format(finished=finished), parameters)
    ended_at = last if window.has_no_work_left and last else window.until
    return DrainedJobs(jobs, (ended_at - window.since).total_seconds(), None if tenths is None else float(tenths))


def watch_redis(database: PeerDatabase, is_over: Callable[[int], bool]) -> Watched:
    broker = database.arena.broker
    assert broker is not None
    began_at, first = time.monotonic(), broker.left(database.peer)
    left = first
    while not is_over(left):
        time.sleep(CHECK_SECONDS / 10)
        left = broker.left(database.peer)
    return DrainedJobs(first - left, time.monotonic() - began_at)


@contextmanager
def has_begun(database: PeerDatabase, began: datetime) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a job has ended since `began` (in Redis: since this call)."""
    if (broker := database.arena.broker) and database.is_in_redis:
        first = broker.left(database.peer)
        yield lambda: broker.left(database.peer) < first
        return
    with database.connected() as connection:
        query = ANY.format(finished=database.store.finished)
        yield lambda: bool(scalar(connection, query, {"since": began}))


def is_filled(database: PeerDatabase) -> bool:
    with database.connected() as connection:
        return bool(scalar(connection, f"SELECT EXISTS (SELECT FROM {database.store.jobs})"))


def prepare(database: PeerDatabase, condition: str) -> None:
    if condition in ("paused queue", "blocked"):
        with database.connected() as connection:
            connection.execute(
                "INSERT INTO jobqueue_queue (backend, name, paused_at, paused_by, pause_reason)"
                " VALUES ('default', 'paused', now(), '', '')"
            )


@contextmanager
def pinned_snapshot(database: PeerDatabase) -> Iterator[None]:
    """Keep a snapshot open as a dump does. Vacuum cannot remove rows that die after it."""
    with psycopg.connect(database.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT txid_current()")
        yield
        connection.rollback()

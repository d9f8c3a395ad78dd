"""A server, executors and senders of our own, which may be killed, frozen and cut off; and their history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from demo_project.postgres import Cluster
from jobqueue.failpoints import VARIABLE as FAILPOINTS
from tests.acceptance.harness import REST, threads
from verification.faults import diary, history
from verification.faults.pgbouncer import Mode, Pooler, run_pooler
from verification.faults.proxy import Proxy

T = TypeVar("T")

HERE = Path(__file__).parent
PATIENCE_SECONDS = 180.0  # only what fails waits for so long
LOOK_SECONDS = 0.01
ANSWER_SECONDS = 120.0  # a server that was killed may read its log for a minute, where the processor has much to do
FINAL = "('SUCCESSFUL', 'FAILED', 'CANCELLED')"
OWN_SESSIONS = 4  # of an executor: loop, heart, listener, chores
SLOTS_IN_ALL = 8
SLOTS = ("--threads", "4", "--async-slots", "4", "-v", "0")
# Of the server, for a pooler's clients: in session mode each has one of its own.
POOLED_SESSIONS: Mapping[Mode, int] = {"session": 150, "transaction": 30}
# What docs/deploy.md asks for behind a pooler.
POOLED_LIMITS: Mapping[str, str] = {"statement_timeout": "10s", "idle_in_transaction_session_timeout": "10s"}
OPTIONS: Mapping[str, Any] = {"HEARTBEAT_TIMEOUT": 3.0, "MAX_EXECUTOR_LOSSES": 100_000}


class Stalled(AssertionError):
    """What was waited for did not come."""


@dataclass(slots=True, eq=False)
class Member:
    """A process of the rig. code: how it ended. proxy: that it goes through."""

    name: str
    pid: int
    role: str
    proxy: Proxy | None = None
    born_at: float = field(default_factory=time.monotonic)
    code: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def is_alive(self) -> bool:
        return not self.ended.is_set()

    @property
    def state(self) -> str:
        """The kernel's letter: R, S, D, T for frozen; Z or none for gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""

    def send(self, number: signal.Signals) -> None:
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Nursery:
    """The process that our executors and senders are forked from."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "verification.faults.nursery"],
            cwd=HERE.parents[1],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._members: dict[int, Member] = {}
        self._born: dict[str, int] = {}
        self._news = threading.Condition()
        self._is_ready = False
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()
        self._wait(lambda: self._is_ready)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = json.loads(line)
            with self._news:
                self._hear(words)
                self._news.notify_all()

    def _hear(self, words: Mapping[str, Any]) -> None:
        match words:
            case {"ready": True}:
                self._is_ready = True
            case {"name": name, "pid": pid}:
                self._born[name] = pid
                self._members[pid] = Member(name, pid, name.partition("-")[0])
            case {"ended": pid, "code": code}:
                self._members[pid].code = code
                self._members[pid].ended.set()

    def _wait(self, condition: Callable[[], T]) -> T:
        with self._news:
            if not self._news.wait_for(lambda: self._process.poll() is not None or condition(), PATIENCE_SECONDS):
                raise Stalled("The nursery says nothing.")
            if self._process.poll() is not None:
                raise Stalled(f"The nursery ended with {self._process.returncode}.")
            return condition()

    def launch(self, name: str, **order: Any) -> Member:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, **order}).encode() + b"\n")
        self._process.stdin.flush()
        self._wait(lambda: name in self._born)
        return self._members[self._born[name]]

    def close(self) -> None:
        """Its children die with it."""
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        for member in self._members.values():
            if member.is_alive:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)


class Rig:
    """One run on a database of its own."""

    def __init__(self, cluster: Cluster, database: str, folder: Path, options: Mapping[str, Any]) -> None:
        self.cluster, self.database, self.folder = cluster, database, folder
        self.options = {name: value for name, value in {**OPTIONS, **options}.items() if value is not None}
        self.timeout_seconds = float(self.options["HEARTBEAT_TIMEOUT"])
        self.url = cluster.url_for(database)
        self._place: dict[str, Any] = {"NAME": database, "USER": "postgres", "HOST": str(cluster.data), "PORT": "5432"}
        self.diary = str(folder / "diary.jsonl")
        self.nursery = Nursery(
            os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DATABASE_URL": self.url,
                "TESTS_OPTIONS": json.dumps(self.options),
                "TESTS_IMPORT": "verification.faults.bodies",
                "PYTHONUNBUFFERED": "1",
                diary.VARIABLE: self.diary,
                FAILPOINTS: "",
            }
        )
        self.members: list[Member] = []
        self.pooler: Pooler | None = None
        self._pooling = ExitStack()
        self._proxies: list[Proxy] = []
        self._connection: psycopg.Connection[Any] | None = None
        self._numbers = iter(range(1, 1_000_000))
        self._threads = self._descriptors = 1_000

    # --- processes

    def launch(self, role: str, *, through: Proxy | None = None, **order: Any) -> Member:
        name = f"{role}-{next(self._numbers)}"
        place = self._place | ({} if through is None else as_place(through))
        member = self.nursery.launch(name, role=role, database=place, log=str(self.folder / f"{name}.log"), **order)
        member.proxy = through
        self.members.append(member)
        return member

    def stand_behind_pooler(self, mode: Mode) -> None:
        """Let the processes that are launched from now on reach the server through PgBouncer."""
        for name, value in POOLED_LIMITS.items():
            self.ask(f"ALTER DATABASE {self.database} SET {name} = '{value}'")
        self.pooler = self._pooling.enter_context(run_pooler(self._place, mode=mode, sessions=POOLED_SESSIONS[mode]))
        self._place |= self.pooler.place | {"DISABLE_SERVER_SIDE_CURSORS": mode == "transaction"}

    def start_executor(self, *flags: str, **order: Any) -> Member:
        return self.launch("executor", flags=[*SLOTS, *flags], **order)

    def start_sender(self, seed: int, most_waiting: int = 100, pause_seconds: float = 0.0, **order: Any) -> Member:
        return self.launch("sender", seed=seed, most_waiting=most_waiting, pause_seconds=pause_seconds, **order)

    def run(self, role: str, **order: Any) -> None:
        """Let a process do something, and end well."""
        self.wait_for_good_end(self.launch(role, **order))

    def wait_for_good_end(self, *members: Member) -> None:
        for member in members:
            self.wait_for(member.ended.is_set, f"the end of {member.name}")
        bad = {member.name: member.code for member in members if member.code != 0}
        assert not bad, f"ended with {bad}: see {self.folder}"

    def living(self, role: str = "executor") -> list[Member]:
        return [member for member in self.members if member.role == role and member.is_alive]

    def hurt(self, member: Member, how: str) -> None:
        """Note what is about to be done to a process; the checker asks."""
        self.note("hurt", whom=member.name, how=how)

    def log(self, member: Member) -> str:
        """What a process has written so far."""
        paths = [self.folder / f"{member.name}.{kind}" for kind in ("log", "jsonl")]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def last_lines(self, about: str) -> str:
        """What the processes and the tasks named in a text came to, as logged."""
        return diary.last_lines(diary.read_logs(self.diary), about)

    def note(self, kind: str, **fields: Any) -> None:
        diary.note(kind, path=self.diary, **fields)

    def stop(self, *members: Member) -> None:
        """Ask to stop, and expect a good end."""
        for member in members:
            member.send(signal.SIGTERM)
        self.wait_for_good_end(*members)

    # --- the database

    def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Ask the server itself, past every proxy; again where it was just killed."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = psycopg.connect(self.url, autocommit=True, application_name="rig")
                cursor = self._connection.execute(query, parameters or None)
                return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError as error:
                self.forget_connection()
                if time.monotonic() > deadline:
                    raise Stalled(f"The server does not answer: {error}") from error
                time.sleep(LOOK_SECONDS)

    def forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def sessions(self, like: str = "executor-%") -> list[int]:
        rows = self.ask(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s", like
        )
        return [pid for (pid,) in rows]

    def count(self, where: str = "TRUE") -> int:
        return int(self.ask(f"SELECT count(*) FROM jobqueue_task WHERE {where}")[0][0])

    def held_by(self, names: Sequence[str]) -> int:
        """How many tasks these executors have in hand."""
        query = (
            "SELECT count(*) FROM jobqueue_task AS task JOIN jobqueue_executor AS executor ON executor.id = executor_id"
            " WHERE task.status = 'RUNNING' AND name = ANY(%s)"
        )
        return int(self.ask(query, list(names))[0][0])

    def ended(self) -> int:
        """How many tasks have ended, pruned ones too."""
        return int(self.ask(f"SELECT count(*) FROM trust_change WHERE after IN {FINAL}")[0][0])

    # --- waiting

    def wait_for(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
        deadline = (began := time.monotonic()) + seconds
        while not (value := condition()):
            if (now := time.monotonic()) > deadline:
                raise Stalled(f"{what}: not within {seconds:g} s; tasks: {self.states()}; see {self.folder}")
            time.sleep(max(LOOK_SECONDS, min(REST * (now - began), 0.1)))
            began = time.monotonic()
        return value

    def wait_for_work(self, more: int) -> None:
        """Wait until so many more tasks have ended."""
        goal = self.ended() + more
        self.wait_for(lambda: self.ended() >= goal, f"{more} more ended tasks")

    def wait_for_first_beat(self, member: Member) -> None:
        self.wait_for(
            lambda: self.ask("SELECT 1 FROM trust_beat WHERE name = %s LIMIT 1", member.name),
            f"the first beat of {member.name}",
        )

    def states(self) -> dict[str, int]:
        return dict(self.ask("SELECT status, count(*) FROM jobqueue_task GROUP BY 1"))

    # --- the end

    def finish(self) -> None:
        """Let the senders stop, everything run to its end, and the executors stop well."""
        self.stop(*self.living("sender"))
        self.wait_for_good_end(*self.living("holder"))
        self.run("close")
        self.wait_for(lambda: not self.count(f"status NOT IN {FINAL}"), "the end of all tasks")
        idle = self.ask(
            "SELECT pid, application_name FROM pg_stat_activity"
            " WHERE state LIKE 'idle in transaction%%' AND clock_timestamp() - xact_start > %s",
            "5 s",
        )
        assert not idle, f"sessions are idle in transaction: {idle}"
        for member in self.living():
            self.wait_for_first_beat(member)  # else it is asked to stop before it listens
            self.wait_for(lambda member=member: self._is_modest(member), f"{member.name} to use no more than before")  # type: ignore[misc]
        self.stop(*self.living())
        self._pooling.close()  # it would keep its sessions
        hurt = {note["whom"] for note in diary.read(self.diary) if note["kind"] == "hurt"}
        executors = [member for member in self.members if member.role == "executor"]
        fallen = {one.name: one.code for one in executors if one.code and one.name not in hurt}
        assert not fallen, f"ended by themselves, with {fallen}: see {self.folder}"
        self.wait_for(lambda: not self.sessions(), "the end of all sessions of executors")

    def get_used_to(self, member: Member) -> None:
        """Remember what an executor at work uses: others, and itself after a storm, are to use no more."""
        self._threads, self._descriptors = threads(member.pid), descriptors(member.pid)

    def _is_modest(self, member: Member) -> bool:
        if not member.is_alive:
            return True
        return (
            threads(member.pid) <= self._threads
            and descriptors(member.pid) <= self._descriptors + SLOTS_IN_ALL
            # Sessions of a pooler bear the name of the client that they served last.
            and (self.pooler is not None or len(self.sessions(member.name)) <= SLOTS_IN_ALL + OWN_SESSIONS)
        )

    def history(self) -> history.History:
        self.forget_connection()
        return history.read(self.url, self.diary, self.timeout_seconds)

    def tell_where_everybody_is(self) -> None:
        """For whoever looks into a failure: threads into the logs of executors, rows that did not end beside them."""
        for member in self.living():
            member.send(signal.SIGUSR1)
        rows = self.ask(
            "SELECT row_to_json(task)::text || ' ' || COALESCE(executor.name, '') FROM jobqueue_task AS task"
            f" LEFT JOIN jobqueue_executor AS executor ON executor.id = executor_id WHERE status NOT IN {FINAL}"
        )
        (self.folder / "unfinished.log").write_text("\n".join(row for (row,) in rows))
        time.sleep(1.0)  # for the logs

    def close(self) -> None:
        self.nursery.close()
        self._pooling.close()
        self.forget_connection()
        for proxy in self._proxies:
            proxy.close()

    @cached_property
    def proxy(self) -> Proxy:
        """Everybody's who goes through one, but for who has one to himself."""
        return self.new_proxy()

    def new_proxy(self) -> Proxy:
        self._proxies.append(Proxy(self.cluster.data / ".s.PGSQL.5432"))
        return self._proxies[-1]


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def as_place(proxy: Proxy) -> dict[str, Any]:
    """The entry in DATABASES of who goes through a proxy."""
    return {
        "HOST": "127.0.0.1",
        "PORT": str(proxy.port),
        "OPTIONS": {"sslmode": "disable", "gssencmode": "disable"},
    }


@contextmanager
def rig(cluster: Cluster, *, pooler_mode: Mode | None = None, **options: Any) -> Iterator[Rig]:
    """
    A rig on a new database. What it wrote stays where the run failed.

    pooler_mode: of the PgBouncer before the server, None for none. options: as in TASKS, in lower case; None for what
    is to be as it comes.
    """
    cluster.start()
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-trust-"))
    database = f"trust_{time.time_ns()}"
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    made = Rig(cluster, database, folder, {key.upper(): value for key, value in options.items()})
    try:
        made.run("migrate")
        made.ask((HERE / "record.sql").read_text())
        if pooler_mode is not None:
            made.stand_behind_pooler(pooler_mode)
        yield made
    except BaseException:
        made.tell_where_everybody_is()
        raise
    finally:
        made.close()
        cluster.start()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

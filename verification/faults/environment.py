"""A PostgreSQL server with executors and senders that tests can kill, freeze and disconnect, and their history."""

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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from jobqueue.values.failpoints import VARIABLE as FAILPOINTS
from tests.acceptance.harness import threads
from tools.postgres import Cluster
from verification.faults import diary, history
from verification.faults.pgbouncer import Mode, Pooler, run_pooler
from verification.faults.proxy import Proxy
from verification.faults.server_access import PATIENCE_SECONDS, ServerAccess, WaitTimeout

T = TypeVar("T")

HERE = Path(__file__).parent
FINAL = "('SUCCESSFUL', 'FAILED', 'CANCELLED')"
OWN_SESSIONS = 4  # of an executor: loop, heartbeat, listener, maintenance
SLOTS_IN_ALL = 8
SLOTS = ("--threads", "4", "--async-slots", "4", "-v", "0")
# Server sessions for a pooler's clients. In session mode each client has one.
POOLED_SESSIONS: Mapping[Mode, int] = {"session": 150, "transaction": 30}
# Required behind a pooler by docs/deploy.md.
POOLED_LIMITS: Mapping[str, str] = {"statement_timeout": "10s", "idle_in_transaction_session_timeout": "10s"}
OPTIONS: Mapping[str, Any] = {"HEARTBEAT_TIMEOUT": 3.0, "MAX_EXECUTOR_LOSSES": 100_000}


@dataclass(slots=True, eq=False)
class LaunchedProcess:
    """A process of the environment. code: its exit code. proxy: the proxy it connects through."""

    name: str
    pid: int
    role: str
    proxy: Proxy | None = None
    started_at: float = field(default_factory=time.monotonic)
    code: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def is_alive(self) -> bool:
        return not self.ended.is_set()

    @property
    def state(self) -> str:
        """The state letter of Linux: R, S, D, T for frozen, Z for a zombie, or empty."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""

    def send(self, number: signal.Signals) -> None:
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """Client of fork_server.py, the process that forks all executors and senders."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "verification.faults.fork_server"],
            cwd=HERE.parents[1],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._launched: dict[int, LaunchedProcess] = {}
        self._started: dict[str, int] = {}
        self._changed = threading.Condition()
        self._is_ready = False
        self._reader = threading.Thread(target=self._read, name="fork-server", daemon=True)
        self._reader.start()
        self._wait(lambda: self._is_ready)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            with self._changed:
                self._handle(report)
                self._changed.notify_all()

    def _handle(self, report: Mapping[str, Any]) -> None:
        match report:
            case {"ready": True}:
                self._is_ready = True
            case {"name": name, "pid": pid}:
                self._started[name] = pid
                self._launched[pid] = LaunchedProcess(name, pid, name.partition("-")[0])
            case {"ended": pid, "code": code}:
                self._launched[pid].code = code
                self._launched[pid].ended.set()

    def _wait(self, condition: Callable[[], T]) -> T:
        with self._changed:
            if not self._changed.wait_for(lambda: self._process.poll() is not None or condition(), PATIENCE_SECONDS):
                raise WaitTimeout("The fork server does not answer.")
            if self._process.poll() is not None:
                raise WaitTimeout(f"The fork server ended with {self._process.returncode}.")
            return condition()

    def launch(self, name: str, **order: Any) -> LaunchedProcess:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, **order}).encode() + b"\n")
        self._process.stdin.flush()
        self._wait(lambda: name in self._started)
        return self._launched[self._started[name]]

    def close(self) -> None:
        """Kill the fork server. Its children die with it."""
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        for process in self._launched.values():
            if process.is_alive:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


class FaultEnvironment(ServerAccess):
    """
    One run of a campaign, on a database of its own.

    It has more than 20 methods because a fault may concern each process, the database and the diary.
    """

    def __init__(self, cluster: Cluster, database: str, folder: Path, options: Mapping[str, Any]) -> None:
        super().__init__(cluster, database, folder)
        self.options = {name: value for name, value in {**OPTIONS, **options}.items() if value is not None}
        self.timeout_seconds = float(self.options["HEARTBEAT_TIMEOUT"])
        self._address: dict[str, Any] = {
            "NAME": database,
            "USER": "postgres",
            "HOST": str(cluster.data),
            "PORT": "5432",
        }
        self.fork_server = ForkServer(
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
        self.processes: list[LaunchedProcess] = []
        self.pooler: Pooler | None = None
        self._pooler_stack = ExitStack()
        self._numbers = iter(range(1, 1_000_000))
        self._threads = self._descriptors = 1_000

    # --- processes

    def launch(self, role: str, *, through: Proxy | None = None, **order: Any) -> LaunchedProcess:
        name = f"{role}-{next(self._numbers)}"
        address = self._address | ({} if through is None else as_address(through))
        process = self.fork_server.launch(
            name, role=role, database=address, log=str(self.folder / f"{name}.log"), **order
        )
        process.proxy = through
        self.processes.append(process)
        return process

    def use_pooler(self, mode: Mode) -> None:
        """Connect all processes that start from now on through PgBouncer."""
        for name, value in POOLED_LIMITS.items():
            self.query(f"ALTER DATABASE {self.database} SET {name} = '{value}'")
        self.pooler = self._pooler_stack.enter_context(
            run_pooler(self._address, mode=mode, sessions=POOLED_SESSIONS[mode])
        )
        self._address |= self.pooler.address | {"DISABLE_SERVER_SIDE_CURSORS": mode == "transaction"}

    def start_executor(self, *flags: str, **order: Any) -> LaunchedProcess:
        return self.launch("executor", flags=[*SLOTS, *flags], **order)

    def start_sender(
        self, seed: int, max_ready: int = 100, pause_seconds: float = 0.0, **order: Any
    ) -> LaunchedProcess:
        return self.launch("sender", seed=seed, max_ready=max_ready, pause_seconds=pause_seconds, **order)

    def run(self, role: str, **order: Any) -> None:
        """Run a process and expect exit code 0."""
        self.wait_for_good_end(self.launch(role, **order))

    def wait_for_good_end(self, *processes: LaunchedProcess) -> None:
        for process in processes:
            self.wait_for(process.ended.is_set, f"the end of {process.name}")
        bad = {process.name: process.code for process in processes if process.code != 0}
        assert not bad, f"ended with {bad}: see {self.folder}"

    def alive(self, role: str = "executor") -> list[LaunchedProcess]:
        return [process for process in self.processes if process.role == role and process.is_alive]

    def kill(self, *processes: LaunchedProcess) -> None:
        """Send SIGKILL and wait for the end: a process that has not ended yet counts as alive."""
        for process in processes:
            process.send(signal.SIGKILL)
        for process in processes:
            self.wait_for(process.ended.is_set, f"the end of {process.name}")

    def note_harm(self, process: LaunchedProcess, how: str) -> None:
        """Record that a fault is about to hit a process. The checker allows rescues from this process only."""
        self.note("hurt", whom=process.name, how=how)

    def log(self, process: LaunchedProcess) -> str:
        """Return the output of a process so far."""
        paths = [self.folder / f"{process.name}.{kind}" for kind in ("log", "jsonl")]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def last_lines(self, about: str) -> str:
        """Return the last log lines of the processes and tasks that a text names."""
        return diary.last_lines(diary.read_logs(self.diary), about)

    def note(self, kind: str, **fields: Any) -> None:
        diary.note(kind, path=self.diary, **fields)

    def stop(self, *processes: LaunchedProcess) -> None:
        """Stop processes with SIGTERM and expect exit code 0."""
        for process in processes:
            process.send(signal.SIGTERM)
        self.wait_for_good_end(*processes)

    # --- the database

    def sessions(self, like: str = "executor-%") -> list[int]:
        rows = self.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s", like
        )
        return [pid for (pid,) in rows]

    def count(self, where: str = "TRUE") -> int:
        return int(self.query(f"SELECT count(*) FROM jobqueue_task WHERE {where}")[0][0])

    def count_claimed_by(self, names: Sequence[str]) -> int:
        """Return how many tasks these executors have claimed."""
        query = (
            "SELECT count(*) FROM jobqueue_task AS task JOIN jobqueue_executor AS executor ON executor.id = executor_id"
            " WHERE task.status = 'RUNNING' AND name = ANY(%s)"
        )
        return int(self.query(query, list(names))[0][0])

    def ended(self) -> int:
        """Return how many tasks have finished, pruned ones included."""
        return int(self.query(f"SELECT count(*) FROM verification_change WHERE after IN {FINAL}")[0][0])

    # --- waiting

    def wait_for_work(self, more: int) -> None:
        """Wait until this many more tasks have finished."""
        goal = self.ended() + more
        self.wait_for(lambda: self.ended() >= goal, f"{more} more ended tasks")

    def wait_for_first_heartbeat(self, process: LaunchedProcess) -> None:
        self.wait_for(
            lambda: self.query("SELECT 1 FROM verification_beat WHERE name = %s LIMIT 1", process.name),
            f"the first heartbeat of {process.name}",
        )

    def wait_for_line(self, process: LaunchedProcess, text: str) -> None:
        self.wait_for(lambda: text in self.log(process), f"{text!r} from {process.name}")

    def states(self) -> str:
        return f"tasks: {dict(self.query('SELECT status, count(*) FROM jobqueue_task GROUP BY 1'))}"

    # --- the end

    def finish(self) -> None:
        """Stop the senders, let every task finish, and stop the executors."""
        self.stop(*self.alive("sender"))
        self.wait_for_good_end(*self.alive("holder"))
        self.run("close")
        self.wait_for(lambda: not self.count(f"status NOT IN {FINAL}"), "the end of all tasks")
        idle = self.query(
            "SELECT pid, application_name FROM pg_stat_activity"
            " WHERE state LIKE 'idle in transaction%%' AND clock_timestamp() - xact_start > %s",
            "5 s",
        )
        assert not idle, f"sessions are idle in transaction: {idle}"
        for process in self.alive():
            self.wait_for_first_heartbeat(process)  # it handles SIGTERM only after its first heartbeat
            is_within_usage = partial(self._is_within_usage, process)
            self.wait_for(is_within_usage, f"{process.name} to use no more than before")
        self.stop(*self.alive())
        self._pooler_stack.close()  # a running pooler keeps its sessions
        harmed = {note["whom"] for note in diary.read(self.diary) if note["kind"] == "hurt"}
        executors = [process for process in self.processes if process.role == "executor"]
        crashed = {
            executor.name: executor.code for executor in executors if executor.code and executor.name not in harmed
        }
        assert not crashed, f"crashed without a fault: {crashed}: see {self.folder}"
        self.wait_for(lambda: not self.sessions(), "the end of all sessions of executors")

    def remember_usage(self, process: LaunchedProcess) -> None:
        """Remember the threads and descriptors of an executor at work. At the end no executor may use more."""
        self._threads, self._descriptors = threads(process.pid), descriptors(process.pid)

    def _is_within_usage(self, process: LaunchedProcess) -> bool:
        if not process.is_alive:
            return True
        return (
            threads(process.pid) <= self._threads
            and descriptors(process.pid) <= self._descriptors + SLOTS_IN_ALL
            # A session of a pooler keeps the name of the client that it served last.
            and (self.pooler is not None or len(self.sessions(process.name)) <= SLOTS_IN_ALL + OWN_SESSIONS)
        )

    def history(self) -> history.History:
        self.forget_connection()
        return history.read(self.url, self.diary, self.timeout_seconds)

    def save_unfinished_work(self) -> None:
        """Save information about a failure: stack traces of executors, and the rows that are not finished."""
        for process in self.alive():
            process.send(signal.SIGUSR1)
        rows = self.query(
            "SELECT row_to_json(task)::text || ' ' || COALESCE(executor.name, '') FROM jobqueue_task AS task"
            f" LEFT JOIN jobqueue_executor AS executor ON executor.id = executor_id WHERE status NOT IN {FINAL}"
        )
        (self.folder / "unfinished.log").write_text("\n".join(row for (row,) in rows))
        time.sleep(1.0)  # until the executors have written their logs

    def close(self) -> None:
        self.fork_server.close()
        self._pooler_stack.close()
        super().close()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def as_address(proxy: Proxy) -> dict[str, Any]:
    """Return the entry in DATABASES for a connection through a proxy."""
    return {
        "HOST": "127.0.0.1",
        "PORT": str(proxy.port),
        "OPTIONS": {"sslmode": "disable", "gssencmode": "disable"},
    }


@contextmanager
def fault_environment(
    cluster: Cluster, *, pooler_mode: Mode | None = None, **options: Any
) -> Iterator[FaultEnvironment]:
    """
    Yield an environment on a new database. After a failure its files stay.

    pooler_mode: run PgBouncer in this mode in front of the server. options: OPTIONS of TASKS, in lower case. None
    selects the default of an option.
    """
    cluster.start()
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-verification-"))
    database = f"verification_{time.time_ns()}"
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    env = FaultEnvironment(cluster, database, folder, {key.upper(): value for key, value in options.items()})
    try:
        env.run("migrate")
        env.query((HERE / "record.sql").read_text())
        if pooler_mode is not None:
            env.use_pooler(pooler_mode)
        yield env
    except BaseException:
        env.save_unfinished_work()
        raise
    finally:
        env.close()
        cluster.start()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

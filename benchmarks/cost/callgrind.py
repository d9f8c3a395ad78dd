"""CPU instructions of programs, as valgrind's callgrind counts them."""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import shutil
import time
from pathlib import Path

START, STOP, DUMP = 0x43540004, 0x43540005, 0x43540000  # requests of callgrind.h
# The function of valgrind.h that asks valgrind for something. Its instructions do nothing where there is no valgrind.
ASK = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
SECONDS = 60.0  # until the process of a session has ended
TOTALS = re.compile(r"(?m)^totals: (\d+)")


def problem() -> str | None:
    """Say why instructions cannot be counted here, or None if they can."""
    if platform.machine() != "x86_64":
        return f"there is no count of instructions for {platform.machine()}"
    return None if shutil.which("valgrind") else "valgrind is not installed"


def of_client(folder: Path) -> list[str]:
    """Return the start of a command whose program calls counting()."""
    return _command(folder, "client", "--instr-atstart=no")


def of_server(folder: Path) -> list[str]:
    """Return the start of PostgreSQL's command. Each session is counted from the moment when it is connected."""
    return _command(folder, "server", "--zero-before=PostgresMain")


def _command(folder: Path, name: str, option: str) -> list[str]:
    return ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/{name}.%p", option]


class Callgrind:
    """Lets valgrind count the instructions of this process between start() and stop()."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._code.write(ASK)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)

    def _ask(self, request: int) -> None:
        self._call(ctypes.byref((ctypes.c_uint64 * 6)(request)))

    def start(self) -> None:
        self._ask(START)

    def stop(self) -> int:
        """Return how many instructions were executed since start()."""
        self._ask(DUMP)
        self._ask(STOP)
        last = max(self._folder.glob("client.*.*"), key=lambda path: int(path.suffix[1:]))
        return instructions(last)


def file_of(folder: Path, pid: int) -> Path:
    return folder / f"server.{pid}"


def of_session(folder: Path, pid: int) -> int:
    """Return the instructions of a session of PostgreSQL that has ended, or is about to end."""
    file, give_up_at = file_of(folder, pid), time.time() + SECONDS
    while not file.exists() or not TOTALS.search(file.read_text(errors="replace")):
        if time.time() > give_up_at:
            raise RuntimeError(f"callgrind has not written {file}.")
        time.sleep(0.01)
    return instructions(file)


def instructions(file: Path) -> int:
    return sum(map(int, TOTALS.findall(file.read_text(errors="replace"))))

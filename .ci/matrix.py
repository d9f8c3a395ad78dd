#!/usr/bin/env python3
"""
Run the suite on every Python found here, with every Django that it supports.

Environments stay in .venv-matrix/ between runs; a changed pyproject.toml or pin recreates them.
What follows `--` goes to pytest.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
DJANGOS = {"5.2": "5.2.19", "6.0": "6.0.10", "6.1": "6.1.3"}  # 5.2 as in constraints.txt
HOME = Path(".venv-matrix")
PINS = Path(".ci/constraints.txt")


def main() -> int:
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true", help="only the newest pair")
    parser.add_argument("--cell", action="append", default=[], help="such as 3.12-6.1; repeatable")
    options = parser.parse_args(sys.argv[1:split])

    pythons = find_pythons()
    cells = [(python, django) for python in pythons for django in DJANGOS if supports(python, django)]
    print("Found Python", ", ".join(pythons) or "none that is supported", flush=True)
    if options.newest:
        cells = cells[-1:]
    if options.cell:
        cells = [cell for cell in cells if "-".join(cell) in options.cell]
        if len(cells) < len(set(options.cell)):
            parser.error(f"not all of {options.cell} can run here")

    rows = []
    for python, django in cells:
        print(f"\n--- Python {python}, Django {django}", flush=True)
        started = time.monotonic()
        status, closing = run_suite(environment(pythons[python], python, django), sys.argv[split + 1 :])
        rows.append((python, django, "passed" if status == 0 else "FAILED", time.monotonic() - started, closing))
    print()
    for python, django, outcome, seconds, closing in rows:
        print(f"Python {python:<5} Django {django:<4} {outcome}  {seconds:5.0f}s  {closing}")
    return int(any(row[2] == "FAILED" for row in rows))


def find_pythons() -> dict[str, str]:
    """Version -> program: the first that runs of those in PATH, then of pyenv's."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    folders += sorted(str(path) for path in Path.home().glob(".pyenv/versions/*/bin"))
    found = {}
    for version in PYTHONS:
        for program in (Path(folder) / f"python{version}" for folder in folders):
            # A shim may exist for a Python that does not, and Debian splits ensurepip off.
            if program.exists() and succeeds(program, "-c", "import ensurepip, sqlite3, ssl, venv"):
                found[version] = str(program)
                break
    return found


def supports(python: str, django: str) -> bool:
    if django != "5.2" and python == "3.11":
        return False
    return not (django == "6.1" and server_version() == 14)


def server_version() -> int:
    if not (folder := os.environ.get("JOBQUEUE_PG_BIN")):
        return 18
    answer = subprocess.run([f"{folder}/postgres", "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"\d+", answer.stdout)
    assert match is not None
    return int(match[0])


def environment(program: str, python: str, django: str) -> Path:
    folder = HOME / f"{python}-{django}"
    interpreter, stamp = folder / "bin/python", folder / ".ready"
    # lint too: tests/unit/test_typing.py needs mypy and Django's stubs, and would skip.
    extras = "test,lint,django52" if django == "5.2" else "test,lint"
    wanted = Path("pyproject.toml").read_bytes() + PINS.read_bytes() + f"{DJANGOS[django]} {extras}".encode()
    digest = hashlib.sha256(wanted).hexdigest()
    if stamp.exists() and stamp.read_text() == digest and succeeds(interpreter, "-c", ""):
        return interpreter
    subprocess.run([program, "-m", "venv", "--clear", folder], check=True)
    install: list[str | Path] = [
        interpreter,
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
        "--no-input",
    ]
    subprocess.run([*install, "-c", PINS, "-e", f".[{extras}]", f"Django=={DJANGOS[django]}"], check=True)
    stamp.write_text(digest)
    return interpreter


def run_suite(interpreter: Path, arguments: list[str]) -> tuple[int, str]:
    """Print pytest's output as it arrives. Return its exit status and last line."""
    command: list[str | Path] = [
        interpreter,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        "5",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "--max-worker-restart",
        "0",
        *arguments,
    ]
    closing = ""
    # As in the Makefile: with it, each of the hundreds of processes that the tests start would compile what it imports.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.strip(" =\n") or closing
    return process.returncode, closing


def succeeds(program: str | Path, *arguments: str) -> bool:
    try:
        return not subprocess.run([program, *arguments], capture_output=True, check=False).returncode
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())

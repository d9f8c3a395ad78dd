"""
Fork executors and senders from one process that has loaded Django.

A start takes a second of processor time, a fork 20 ms. Orders arrive on stdin, one JSON object per line. Process ids
and exit codes go to stdout.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import django
from django.core.checks import run_checks
from django.core.management import call_command, execute_from_command_line
from django.db import connections

from jobqueue.values import failpoints

CHECK_SECONDS = 0.02


def report(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def main() -> None:
    django.setup()
    # Loaded and checked once for all children. In each child this took three quarters of a start.
    from jobqueue.engine.postgres import engine  # noqa: F401
    from jobqueue.management.commands import run_executors  # noqa: F401
    from verification.faults import bodies, checkout_bodies, senders  # noqa: F401

    run_checks()
    gc.freeze()
    report(ready=True)
    buffer = b""
    while True:
        if select.select([0], [], [], CHECK_SECONDS)[0]:
            if not (data := os.read(0, 65536)):
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                launch(json.loads(line))
        reap()


def launch(order: Mapping[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a child handles SIGTERM once it is ready
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        report(name=order["name"], pid=pid)
    else:
        become(order)


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        report(ended=pid, code=os.waitstatus_to_exitcode(status))


def become(order: Mapping[str, Any]) -> NoReturn:
    """Run the ordered role in the child, and never return."""
    code: Any = 1
    try:
        set_up(order)
        run_role(order)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - the child must never continue as a second fork server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def set_up(order: Mapping[str, Any]) -> None:
    from tests.acceptance.forks import prepare

    prepare(None)
    os.setpgid(0, 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ["PGAPPNAME"] = order["name"]
    connections.settings["default"].update(order["database"])
    failpoints.arm(order.get("failpoints", ""))


def run_role(order: Mapping[str, Any]) -> None:
    from verification.faults import senders

    if order["role"] not in ("sender", "limiter"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    match order["role"]:
        case "executor":
            from jobqueue.executor import maintenance
            from verification.faults import slow_hook

            maintenance.PRUNE_SECONDS = order.get("prune_seconds", maintenance.PRUNE_SECONDS)
            if folder := order.get("slow"):
                slow_hook.install(Path(folder))
            command = ["manage.py", "run_executors", "--skip-checks", "--name", order["name"], *order["flags"]]
            sys.orig_argv[:] = [sys.executable, *command]  # the command that replaces this process
            execute_from_command_line(command)
        case "sender":
            senders.Sender(order["seed"], order["max_ready"], order["pause_seconds"]).run()
        case "limiter":
            senders.LimitSender(order["seed"], order["max_ready"], order["pause_seconds"], order["keys"]).run()
        case "shopper":
            from verification.faults import checkout_bodies

            checkout_bodies.Shopper(order["seed"], order["checkouts"], order["each_second"]).run()
        case "holder":
            senders.hold(order["seconds"])
        case "poisoner":
            senders.poison(order["losses"])
        case "scheduler":
            senders.schedule_each_second(order["count"], order["starts_at"], order["ends_at"])
        case "close":
            senders.close_collectors()
        case "migrate":
            call_command("migrate", verbosity=0, run_syncdb=True)


if __name__ == "__main__":
    main()

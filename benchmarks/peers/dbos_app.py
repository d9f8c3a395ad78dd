"""The workflow of ten steps in DBOS: python -m benchmarks.peers.dbos_app URL enqueue COUNT | work"""

from __future__ import annotations

import os
import signal
import sys
import threading

from dbos import DBOS, DBOSConfig

STEPS = 10
QUEUE = "bench"


@DBOS.step()
def add_one(total: int) -> int:
    return total + 1


@DBOS.workflow()
def ten_steps(total: int) -> int:
    for _ in range(STEPS):
        total = add_one(total)
    return total


def main(url: str, verb: str, count: str = "0") -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "application_version": "bench",
        "executor_id": f"process-{os.getpid()}",
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.listen_queues([] if verb == "enqueue" else [QUEUE])
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=20, polling_interval_sec=0.05)
    if verb == "enqueue":
        for _ in range(int(count)):
            DBOS.enqueue_workflow(QUEUE, ten_steps, 0)
    else:
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        print("ready", flush=True)
        ended.wait()
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The workflow of ten steps in absurd: python -m benchmarks.peers.absurd_app URL enqueue COUNT | work"""

from __future__ import annotations

import sys
from typing import Any

from absurd_sdk import Absurd

STEPS = 10


def main(url: str, verb: str, count: str = "0") -> None:
    app = Absurd(url, queue_name="bench")

    @app.register_task(name="ten_steps")
    def ten_steps(params: Any, context: Any) -> int:
        total: int = params["total"]
        for number in range(STEPS):
            total = context.step(f"add-{number}", lambda total=total: total + 1)
        return total

    if verb == "enqueue":
        app.create_queue("bench")
        for _ in range(int(count)):
            app.spawn("ten_steps", {"total": 0})
    else:
        print("ready", flush=True)
        app.start_worker(concurrency=8, poll_interval=0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""
The process that runs tasks.

The life of a process:
- `settings`: the flags of `run_executors`, as a value.
- `process`: one executor process: its parts, its signals, its end.
- `supervisor`: several processes, and `--reload`.
- `signals`: POSIX signals, as bytes in a pipe.
- `forks`: end a forked copy of the executor.
- `standard_streams`: keep descriptors 0 to 2 open.
- `exit_status`: exit codes, and the end of a process in spite of its threads.

The loop and what it calls:
- `loop`: commit what has completed, claim what fits, start it, wait for an event.
- `claim_policy`: how much to claim, from which queues, and when.
- `isolation`: a task that lost two executors runs alone.
- `running_tasks`: the claimed tasks of this process, each until the database has confirmed its outcome.
- `callbacks`: log lines and signals of committed results, in a thread of their own.
- `maintenance`: wake, sweep, rescue, prune and aggregate between two claims.

Threads beside the loop:
- `heartbeat`: keeps the executor's row fresh, finds lost claims and cancel requests.
- `listener`: PostgreSQL's notifications.
- `watchdog`: timeouts, hung connections, tasks that ignore an interruption.

Folders:
- `running/`: one attempt of a task, from its row to the outcome.
- `pools/`: worker threads, and the event loop of `async def` tasks.
- `database/`: connections of the executor and of bodies.
- `health/`: liveness and readiness, for `--health` and systemd.
- `telemetry/`: log lines, signals, redaction.
"""

"""
The process that runs tasks: `manage.py run_executors`.

The life of a process: `supervisor` starts children, `process` builds the parts of one and stops them, `signals`,
`settings` and `exit_status` serve both. `process_guard` handles a body that forks or closes streams.

`loop` commits, claims and starts tasks. It asks `claim_policy` how much to claim, `isolation` whether a task has to
run alone, and `maintenance` to wake, rescue and prune. `running_tasks` has the claimed tasks until their commit.

`heartbeat`, `watchdog`, `listener` and `callbacks` are threads beside the loop. `pools` runs tasks in slots, `running`
runs one attempt. `database` has the connections, `health` finds problems, `telemetry` writes the log.
"""

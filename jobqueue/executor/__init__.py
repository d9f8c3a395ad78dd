"""
The process that runs tasks: `manage.py run_executors`.

`loop` commits, claims and starts tasks. The other modules each have one part of this, or of the process around it.

* `awaiting_code`: AWAITING_CODE tasks: which this executor has code for, and which READY ones no claim should read
  again
* `budgets`: how much each call of the loop may do at once, and when it is made again after it has failed
* `callbacks`: log lines and signals of committed results, and signals of scheduled tasks, in a thread of their own
* `child_processes`: child processes that bodies have started: they end with their executor
* `claim_policy`: how much to claim, from which queues, and when
* `claims`: what this process claims, and where claimed tasks go: to a pool, or back
* `commit_batches`: which outcomes the next commit contains: fewer after one that failed, more after each that
  succeeded
* `database/`: the connections of executors and of bodies
* `exit_status`: exit codes of `run_executors`, and ways to end a process without waiting for its threads
* `health/`: liveness and readiness of an executor
* `heartbeat`: the heartbeat thread: it keeps this executor's row fresh, and finds lost claims and requests to
  cancel
* `isolation`: a task that lost two executors runs alone in its process
* `listener`: the listener thread: PostgreSQL's notifications
* `loop`: the executor's loop: commit what has completed, claim what fits, start it, then wait for an event
* `maintenance`: maintain the whole queue between two claims: wake, sweep, rescue, prune, aggregate
* `memory`: how much memory a process uses
* `outcomes`: what became of tasks: from a completed attempt to the commit that the database has confirmed
* `pools/`: pools run claimed tasks in their slots
* `process`: one executor process: its parts, its signals, its end
* `process_guard`: guard the process against bodies that fork it or close the standard streams
* `reports`: what bodies report: progress, and the lines that they log
* `running/`: one attempt of a task, from its row to the outcome
* `running_tasks`: the claimed tasks of this process: each from its claim until the database has confirmed what
  became of it
* `settings`: the flags of `run_executors`, as a value
* `signals`: POSIX signals and other events for the main thread, as bytes in a pipe
* `step_recorder`: the recorder thread: it records the steps of all workflows that run in this process, many in one
  transaction
* `stop`: the end of the loop: when nothing is left to do, and what it releases if it cannot wait
* `supervisor`: `--processes N` and `--reload`: start executors as child processes, replace those that end, pass
  signals on
* `telemetry/`: what an executor writes to the log, and how errors become text
* `watchdog`: the watchdog thread: timeouts, hung connections, a lost heartbeat, tasks that ignore an interruption
"""

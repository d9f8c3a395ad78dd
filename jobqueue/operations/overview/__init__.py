"""
The state of the whole queue: figures, charts, and what is wrong.

* `code_findings`: tasks and schedules whose code is missing, in executors or in this process; with a system check
* `findings`: what is wrong with a backend, for `doctor` and for the overview: queues, executors, failures, limits,
  schedules, server
* `limit_findings`: the findings about limits: keys that keep tasks BLOCKED, and why
* `periods`: the counters of minutes and hours, as points of a chart and as sums of a range
* `schedule_findings`: the findings about schedules
* `server_findings`: the findings about a PostgreSQL server: locks, durability and connections
* `stats`: figures of queues and executors
* `workflows`: which workflows run on which version of the code, what they wait for, and the findings about them
"""

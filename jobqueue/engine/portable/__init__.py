"""
The parts of the engine on Django's ORM. SQLite uses all of them. PostgreSQL replaces some.

`enqueues` and `inserts` add tasks, and `tasks` cancels, requeues and prunes them. `claim` and `commit` are the two ends
of an attempt. `messages` sends, reads, and wakes receivers. `executors` has heartbeats and the rescue, `queues` pauses
and limits of queues. `admissions` lets BLOCKED tasks run. `code_waits` keeps tasks for which no executor has code.
`schedules` fires ticks. `counters` counts. `progress` and `body_log` keep what bodies report, with `reports` in common.
`database` reads and locks rows for all of them.
"""

"""
The parts of the engine on Django's ORM. SQLite uses all of them. PostgreSQL replaces some.

`tasks` enqueues, cancels, requeues and prunes. `claim` and `commit` are the two ends of an attempt. `messages` sends,
reads, and wakes receivers. `executors` has heartbeats and the rescue, `queues` pauses and limits. `counters` counts.
`database` reads and locks rows for all of them.
"""

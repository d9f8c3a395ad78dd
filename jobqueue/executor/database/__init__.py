"""
The connections of executors and of bodies.

* `connection`: the connections of the executor's own threads, and whether the database is reachable
* `permits`: how many async bodies have database connections at once
* `task_connections`: Django's connections in the threads that run bodies: opened lazily, and reset for the next
  body
"""

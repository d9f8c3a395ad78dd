"""
Database connections of the executor.

- `connection`: connections of the executor's own threads, guarded against hanging.
- `state`: whether the database is reachable, as all threads see it.
- `task_connections`: Django's connections in the threads that run bodies.
"""

"""Connections: `connection` has those of the executor's threads, `task_connections` those of bodies."""

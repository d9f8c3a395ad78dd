"""
The parts of the engine that differ on PostgreSQL, under the names of `portable`. `sql/` has one statement in each file.

`tasks` enqueues, claims and commits. `engine` puts the parts together. `connection` runs the statements.
"""

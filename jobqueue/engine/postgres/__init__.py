"""The parts of the engine that differ on PostgreSQL. `sql/` has one statement in each file."""

"""The parts of the engine on Django's ORM. SQLite uses all of them. PostgreSQL replaces some."""

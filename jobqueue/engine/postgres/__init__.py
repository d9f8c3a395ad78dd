"""The engine on PostgreSQL: statements in place of the portable parts, under the same file names."""

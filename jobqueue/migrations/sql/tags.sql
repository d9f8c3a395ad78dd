-- Index the tags of tasks. A task without tags has no entry, so it pays nothing.
-- Parameters: {schema}. Locks: jobqueue_task SHARE, while it reads the table: run it before tasks exist.
-- Why here: SQLite has no such index, and Django would try to create it there, too.
CREATE INDEX IF NOT EXISTS jobqueue_task_tags ON {schema}.jobqueue_task USING gin (tags jsonb_path_ops) WHERE tags IS NOT NULL;

-- Take back what a table keeps when the tally's own tables go.
-- Parameters: none. Locks: none that others wait for.
DROP STATISTICS IF EXISTS {schema}.jobqueue_task_depths;

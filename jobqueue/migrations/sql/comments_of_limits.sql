-- Explain in psql a column that has had another name in comments.sql.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue.
COMMENT ON COLUMN jobqueue_task.count_while_retrying IS 'Whether it counts while it waits for a retry, too.';

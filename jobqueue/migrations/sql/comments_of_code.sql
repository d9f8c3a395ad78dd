-- Explain in psql a column that came after those of comments.sql.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue.
COMMENT ON COLUMN jobqueue_task.awaits_code_since IS
'Since when an AWAITING_CODE task waits for an executor with code that takes its arguments.';

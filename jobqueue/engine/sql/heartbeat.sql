-- Write an executor's sign of life.
-- Parameters: executor_id, state. Index: the primary key.
-- Locks: the executor's own row. clock_timestamp(), since after a lock wait now() is old already.
UPDATE jobqueue_executor SET heartbeat = clock_timestamp(), state = %(state)s WHERE id = %(executor_id)s

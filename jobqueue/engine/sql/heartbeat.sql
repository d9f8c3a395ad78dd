-- Write an executor's sign of life: into its row, or beside it while another session keeps the row locked.
-- Parameters: executor_id, state. Index: the primary key. The answer is one row, none where the executor has no row.
-- Locks: the executor's own row, where it is free. No lock on a row makes a beat wait; one on the whole table does.
WITH own AS MATERIALIZED (
    SELECT id FROM jobqueue_executor WHERE id = %(executor_id)s FOR NO KEY UPDATE SKIP LOCKED
),
written AS (
    UPDATE jobqueue_executor AS executor
    SET heartbeat = clock_timestamp(), state = %(state)s
    FROM own
    WHERE executor.id = own.id
),
spare AS (
    INSERT INTO jobqueue_spareheartbeat (executor_id, at)
    SELECT id, clock_timestamp() FROM jobqueue_executor WHERE id = %(executor_id)s AND NOT EXISTS (SELECT FROM own)
)
SELECT id FROM jobqueue_executor WHERE id = %(executor_id)s

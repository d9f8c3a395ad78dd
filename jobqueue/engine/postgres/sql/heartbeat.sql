-- Write an executor's heartbeat: into its row, or into jobqueue_fallbackheartbeat while another session locks the row.
-- Parameters: executor_id, state, waiting_for_connections. Index: the primary key. Returns one row, or none if the executor has no row.
-- Locks: the executor's own row, if it is free. A lock on the row does not delay the heartbeat; one on the table does.
WITH own AS MATERIALIZED (
    SELECT id FROM jobqueue_executor WHERE id = %(executor_id)s FOR NO KEY UPDATE SKIP LOCKED
),
written AS (
    UPDATE jobqueue_executor AS executor
    SET heartbeat = clock_timestamp(), state = %(state)s, waiting_for_connections = %(waiting_for_connections)s
    FROM own
    WHERE executor.id = own.id
),
fallback AS (
    INSERT INTO jobqueue_fallbackheartbeat (executor_id, at)
    SELECT id, clock_timestamp() FROM jobqueue_executor WHERE id = %(executor_id)s AND NOT EXISTS (SELECT FROM own)
)
SELECT id FROM jobqueue_executor WHERE id = %(executor_id)s

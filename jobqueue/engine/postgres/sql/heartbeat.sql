-- Write the heartbeat of an executor. Return whether the executor has a row.
-- Parameters: executor_id, state, waiting_for_connections, problem. Index: the primary keys.
-- Locks: the row of jobqueue_heartbeat, which only its executor writes. A lock on the executor's row delays nothing.
INSERT INTO jobqueue_heartbeat AS heartbeat (executor_id, at, state, waiting_for_connections, problem)
VALUES (%(executor_id)s, clock_timestamp(), %(state)s, %(waiting_for_connections)s, %(problem)s)
ON CONFLICT (executor_id) DO UPDATE SET
    at = clock_timestamp(), state = excluded.state, waiting_for_connections = excluded.waiting_for_connections,
    problem = excluded.problem
RETURNING EXISTS (SELECT FROM jobqueue_executor WHERE id = heartbeat.executor_id)

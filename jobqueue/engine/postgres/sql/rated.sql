-- The condition of the index jobqueue_task_rated, for a task. Part of admit_by_rate.sql, blocked_by_rate.sql and
--   rates_to_count.sql.
-- Parameters: none. Index: jobqueue_task_rated. Locks: none.
-- The callers compare the status with (SELECT 'BLOCKED'), too: with old statistics, the planner preferred the index
--   jobqueue_task_waiting for a constant, and read and sorted all BLOCKED tasks. The constants below must stay: an index
--   serves only a condition that follows from constants.
task.backend = %(backend)s AND (
    task.status = 'READY' OR (task.status = 'RUNNING' AND task.start_counted_at IS NULL)
    OR (task.status = 'BLOCKED' AND (task.concurrency_key IS NULL OR task.counts_while_waiting))
)

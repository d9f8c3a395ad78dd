-- The condition of the index jobqueue_task_rated, for a task. Part of admit_by_rate.sql, blocked_by_rate.sql and
--   rates_to_count.sql.
-- Parameters: none. Index: jobqueue_task_rated. Locks: none.
-- Why with (SELECT 'BLOCKED') in place of a constant: with old statistics, the planner preferred jobqueue_task_waiting, and
--   read and sorted all BLOCKED tasks. It can use only an index whose condition follows from constants.
task.backend = %(backend)s AND (
    task.status = 'READY' OR (task.status = 'RUNNING' AND task.start_counted_at IS NULL)
    OR (task.status = 'BLOCKED' AND (task.concurrency_key IS NULL OR task.counts_while_waiting))
)

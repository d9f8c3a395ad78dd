-- Make tasks READY after their wake_at, which becomes their rank; or BLOCKED, if they have a limit. Return their statuses.
-- Parameters: backend, wake_limit; aging: seconds per point of priority.
-- Index: jobqueue_task_wake_at. Locks: the rows, skipping locked ones.
-- Trap: a volatile function cannot search an index. Without the SELECT around the clock, every wake_at was read.
WITH due AS MATERIALIZED (
    SELECT id FROM jobqueue_task
    WHERE backend = %(backend)s AND wake_at IS NOT NULL AND status IN ('SCHEDULED', 'SUSPENDED')
        AND wake_at <= (SELECT clock_timestamp())
    ORDER BY backend, wake_at LIMIT %(wake_limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE jobqueue_task AS task
SET status = {ready_status}, wake_at = NULL,
    counts_while_waiting = task.counts_while_waiting AND task.rate_key IS NOT NULL,
    rank = task.wake_at - make_interval(secs => task.priority * %(aging)s::float8),
    timed_out = task.timed_out OR (task.status = 'SUSPENDED' AND COALESCE(task.timeout_at <= clock_timestamp(), TRUE))
FROM due
WHERE task.id = due.id
RETURNING task.id, task.status

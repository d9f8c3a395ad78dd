-- Return the seconds until the next wake_at of a backend. There is no row if no task has one.
-- Parameters: backend. Index: jobqueue_task_wake_at. Locks: none.
SELECT EXTRACT(EPOCH FROM wake_at - clock_timestamp())::float8 FROM jobqueue_task
WHERE backend = %(backend)s AND wake_at IS NOT NULL AND status IN ('SCHEDULED', 'SUSPENDED')
ORDER BY backend, wake_at LIMIT 1

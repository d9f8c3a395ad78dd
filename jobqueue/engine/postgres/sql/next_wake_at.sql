-- Seconds until the next alarm of a backend; no row when none is set.
-- Parameters: backend. Index: jobqueue_task_alarms. Locks: none.
SELECT EXTRACT(EPOCH FROM wake_at - clock_timestamp())::float8
FROM jobqueue_task
WHERE backend = %(backend)s AND wake_at IS NOT NULL AND status IN ('SCHEDULED', 'SUSPENDED')
ORDER BY backend, wake_at
LIMIT 1

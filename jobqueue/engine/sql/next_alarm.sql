-- Seconds until the next alarm of a backend; no row when none is set.
-- Trap: before PostgreSQL 17 nothing can be subtracted from 'infinity': hence LEAST and GREATEST.
-- Parameters: backend. Index: jobqueue_task_alarms. Locks: none.
SELECT EXTRACT(EPOCH FROM LEAST(GREATEST(wake_at, '0002-01-01'), '9998-01-01') - clock_timestamp())::float8
FROM jobqueue_task
WHERE backend = %(backend)s AND wake_at IS NOT NULL AND status IN ('SCHEDULED', 'SUSPENDED')
ORDER BY backend, wake_at
LIMIT 1

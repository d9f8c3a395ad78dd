-- Lock the rows of queues with a limit, so that nobody else claims from them meanwhile; locked ones are left out.
-- Parameters: backend, queues. Index: jobqueue_queue_name.
-- Locks: the rows FOR NO KEY UPDATE, in order of name. Who counts in the same statement counts what ran before the lock.
SELECT name, max_running
FROM jobqueue_queue
WHERE backend = %(backend)s AND name = ANY(%(queues)s::text[])
ORDER BY name
FOR NO KEY UPDATE SKIP LOCKED

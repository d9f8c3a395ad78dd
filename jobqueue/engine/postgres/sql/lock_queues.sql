-- Lock the rows of queues with a limit, so that no other executor claims from them. Skips locked rows.
-- Parameters: backend, queues. Index: jobqueue_queue_name. Locks: the rows FOR NO KEY UPDATE, in order of name.
-- Trap: counting tasks in the same statement would use the snapshot from before the lock.
SELECT name, max_running FROM jobqueue_queue
WHERE backend = %(backend)s AND name = ANY(%(queues)s::text[])
ORDER BY name FOR NO KEY UPDATE SKIP LOCKED

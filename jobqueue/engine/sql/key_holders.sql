-- Name, of each key, the live task that holds it; of a key without one, the task that held it last.
-- Parameters: backend, keys. Index: jobqueue_task_key, jobqueue_task_past_key. Locks: none.
-- For keys that were in the way of an insert, which a later look does not find: their holders ended in between. An insert
-- is left out only where it meets a live task. That task held the key during the call, and it is seen here: this statement
-- has a later snapshot. If it has ended, so has each task that held the key before it. So the last holder, too, held
-- the key during the call, and is a right answer however many come and go. The last is the last by the server's clock. A
-- task that was deleted since is not seen.
-- One statement: a task that is requeued between two would be missed by both.
-- Why no lock on the key: it would stay until the caller's transaction ends, so that all callers of a key waited for
-- each other, and a batch of ten thousand keys would fill the server's table of locks.
SELECT DISTINCT ON (key) key, id, enqueued_at, status
FROM (
    SELECT key, id, enqueued_at, status, finished_at FROM jobqueue_task
    WHERE backend = %(backend)s AND key = ANY(%(keys)s::text[]) AND finished_at IS NULL
    UNION ALL
    SELECT key, id, enqueued_at, status, finished_at FROM jobqueue_task
    WHERE backend = %(backend)s AND key = ANY(%(keys)s::text[]) AND finished_at IS NOT NULL
) AS holder
ORDER BY key, finished_at DESC NULLS FIRST

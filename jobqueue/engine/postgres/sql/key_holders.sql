-- Return the live task that holds each key. For a key without a live task, return the task that held it last.
-- Parameters: backend, keys. Index: jobqueue_task_key, jobqueue_task_ended_key. Locks: none.
-- For keys that were taken during an insert, but whose task ended before the next query. Either task is a correct answer.
-- Why one statement: two statements could both miss a task that is requeued between them.
-- Why no lock on the key: it would last until the caller's transaction ends, and delay all callers of that key.
SELECT DISTINCT ON (key) key, id, enqueued_at, status
FROM (
    SELECT key, id, enqueued_at, status, finished_at FROM jobqueue_task
    WHERE backend = %(backend)s AND key = ANY(%(keys)s::text[]) AND finished_at IS NULL AND taken_over_by_id IS NULL
    UNION ALL
    SELECT key, id, enqueued_at, status, finished_at FROM jobqueue_task
    WHERE backend = %(backend)s AND key = ANY(%(keys)s::text[]) AND finished_at IS NOT NULL
) AS holder
ORDER BY key, finished_at DESC NULLS FIRST

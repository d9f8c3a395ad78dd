-- Name the live task that holds each key. For a key without a live task, name the task that held it last.
-- Parameters: backend, keys. Index: jobqueue_task_key, jobqueue_task_past_key. Locks: none.
-- For keys that were taken when a row was inserted, but whose holder a later query did not find: it ended in between.
-- The insert skips a row only if it meets a live task. That task held the key during the call. This statement sees it,
-- because its snapshot is later. If that task has ended, each earlier holder has ended, too. So the last holder also
-- held the key during the call, and is a correct answer however often holders change.
-- The server's clock decides which holder is the last. A task that was deleted since is not seen.
-- Why one statement: two statements could both miss a task that is requeued between them.
-- Why no lock on the key: it would last until the caller's transaction ends. All callers of a key would wait for each
-- other, and a batch of ten thousand keys would fill the server's lock table.
SELECT DISTINCT ON (key) key, id, enqueued_at, status
FROM (
    SELECT key, id, enqueued_at, status, finished_at FROM jobqueue_task
    WHERE backend = %(backend)s AND key = ANY(%(keys)s::text[]) AND finished_at IS NULL
    UNION ALL
    SELECT key, id, enqueued_at, status, finished_at FROM jobqueue_task
    WHERE backend = %(backend)s AND key = ANY(%(keys)s::text[]) AND finished_at IS NOT NULL
) AS holder
ORDER BY key, finished_at DESC NULLS FIRST

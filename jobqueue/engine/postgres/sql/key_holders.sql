-- Return the live task that holds each key. For a key without a live task, return the task that held it last.
-- Parameters: backend, keys. Index: jobqueue_task_key, jobqueue_task_ended_key, one step per key. Locks: none.
-- For keys that were taken during an insert, but whose task ended before the next query. Either task is a correct answer.
-- Why one statement: two statements could both miss a task that is requeued between them.
-- Why no lock on the key: it would last until the caller's transaction ends, and delay all callers of that key.
-- Trap: with `key = asked.key`, the planner may read all ended tasks, if most have one key. See count_unread.sql.
SELECT DISTINCT ON (asked.key) asked.key, holder.id, holder.enqueued_at, holder.status
FROM (SELECT DISTINCT key FROM unnest(%(keys)s::text[]) AS given (key)) AS asked
CROSS JOIN LATERAL (
    (
        SELECT id, enqueued_at, status, finished_at FROM jobqueue_task
        WHERE backend = %(backend)s AND key >= asked.key AND key <= asked.key AND finished_at IS NULL
            AND taken_over_by_id IS NULL
    )
    UNION ALL
    (
        SELECT id, enqueued_at, status, finished_at FROM jobqueue_task
        WHERE backend = %(backend)s AND key >= asked.key AND key <= asked.key AND finished_at IS NOT NULL
        ORDER BY finished_at DESC LIMIT 1
    )
) AS holder
ORDER BY asked.key, holder.finished_at DESC NULLS FIRST

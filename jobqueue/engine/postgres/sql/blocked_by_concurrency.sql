-- Return the next BLOCKED tasks of a concurrency key, with their queues and names, lowest rank first.
-- Parameters: backend, key, head_limit. Index: jobqueue_task_concurrency, one entry for each task. Locks: none.
-- Why (SELECT 'BLOCKED'): see admit_by_concurrency.sql.
SELECT id, queue_name, task_type FROM jobqueue_task
WHERE backend = %(backend)s AND concurrency_key = %(key)s AND NOT counts_while_waiting
    AND status = (SELECT 'BLOCKED') AND finished_at IS NULL
ORDER BY backend, concurrency_key, counts_while_waiting, status, rank, id LIMIT %(head_limit)s

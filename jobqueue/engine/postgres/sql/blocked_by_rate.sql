-- Return the next BLOCKED tasks of a rate key, with their queues and names, lowest rank first.
-- Parameters: backend, key, head_limit. Index: jobqueue_task_rated, one entry for each task. Locks: none.
-- Why (SELECT 'BLOCKED'): see admit_by_concurrency.sql.
SELECT task.id, task.queue_name, task.task_type FROM jobqueue_task AS task
WHERE {rated} AND task.rate_key = %(key)s AND task.status = (SELECT 'BLOCKED')
ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id LIMIT %(head_limit)s

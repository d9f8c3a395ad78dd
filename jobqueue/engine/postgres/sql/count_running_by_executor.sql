-- Count the running tasks by queue and executor.
-- Parameters: backend, running_limit: how many tasks are read. Index: jobqueue_task_running. Locks: none.
SELECT queue_name, executor_id, count(*)
FROM (
    SELECT queue_name, executor_id FROM jobqueue_task
    WHERE backend = %(backend)s AND status = 'RUNNING'
    ORDER BY executor_id, queue_name, id LIMIT %(running_limit)s
) AS held
GROUP BY queue_name, executor_id

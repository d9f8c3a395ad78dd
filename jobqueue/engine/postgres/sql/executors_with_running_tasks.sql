-- Return the executors that hold RUNNING tasks, with the seconds since their last heartbeat (NULL: no row).
-- A loose index scan, one step per executor.
-- Parameters: backend. Index: jobqueue_task_running, jobqueue_fallback_heartbeat. Locks: none.
WITH RECURSIVE holder AS (
    (
        SELECT executor_id FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'RUNNING' AND executor_id IS NOT NULL ORDER BY executor_id LIMIT 1
    )
    UNION ALL
    SELECT following.executor_id
    FROM holder CROSS JOIN LATERAL (
        SELECT task.executor_id FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.status = 'RUNNING' AND task.executor_id > holder.executor_id
        ORDER BY task.executor_id LIMIT 1
    ) AS following
)
SELECT holder.executor_id, EXTRACT(EPOCH FROM clock_timestamp() - {last_heartbeat})::float8
FROM holder LEFT JOIN jobqueue_executor AS executor ON executor.id = holder.executor_id

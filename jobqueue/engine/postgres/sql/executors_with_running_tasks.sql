-- Return the executors that hold RUNNING tasks, with the seconds since their last heartbeat (NULL: none).
-- A loose index scan, one step per executor of any backend: with the backend in the search, the planner may prefer
-- another index of RUNNING tasks, and read all of them.
-- Parameters: backend. Index: jobqueue_task_running, the primary key of heartbeats. Locks: none.
WITH RECURSIVE holder AS (
    (
        SELECT executor_id, backend FROM jobqueue_task
        WHERE status = 'RUNNING' AND executor_id IS NOT NULL ORDER BY executor_id LIMIT 1
    )
    UNION ALL
    SELECT following.executor_id, following.backend
    FROM holder CROSS JOIN LATERAL (
        SELECT task.executor_id, task.backend FROM jobqueue_task AS task
        WHERE task.status = 'RUNNING' AND task.executor_id > holder.executor_id
        ORDER BY task.executor_id LIMIT 1
    ) AS following
)
SELECT holder.executor_id, EXTRACT(EPOCH FROM clock_timestamp() - heartbeat.at)::float8
FROM holder LEFT JOIN jobqueue_heartbeat AS heartbeat ON heartbeat.executor_id = holder.executor_id
WHERE holder.backend = %(backend)s

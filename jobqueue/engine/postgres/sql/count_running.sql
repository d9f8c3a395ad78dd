-- Count the running tasks of some queues, up to a number for each. A loose index scan: one step per executor and queue.
-- Parameters: backend, queues, max_tasks: how far to count each. Index: jobqueue_task_running. Locks: none.
-- Trap: with `queue_name = asked.name`, the order is the same in any index. See count_unread.sql.
-- An index by queue would add 2 us to the 30 us of every claim, also without limits.
WITH RECURSIVE holder AS (
    (
        SELECT executor_id FROM jobqueue_task
        WHERE status = 'RUNNING' AND executor_id IS NOT NULL ORDER BY executor_id LIMIT 1
    )
    UNION ALL
    SELECT following.executor_id
    FROM holder CROSS JOIN LATERAL (
        SELECT task.executor_id FROM jobqueue_task AS task
        WHERE task.status = 'RUNNING' AND task.executor_id > holder.executor_id ORDER BY task.executor_id LIMIT 1
    ) AS following
)
SELECT asked.name, (
    SELECT count(*)
    FROM (
        SELECT
        FROM holder CROSS JOIN LATERAL (
            SELECT FROM jobqueue_task AS task
            WHERE task.executor_id = holder.executor_id AND task.status = 'RUNNING'
                AND task.queue_name >= asked.name AND task.queue_name <= asked.name
                AND task.backend = %(backend)s
            ORDER BY task.executor_id, task.queue_name
            LIMIT asked.max_tasks
        ) AS held
        LIMIT asked.max_tasks
    ) AS running
)
FROM unnest(%(queues)s::text[], %(max_tasks)s::int[]) AS asked (name, max_tasks)

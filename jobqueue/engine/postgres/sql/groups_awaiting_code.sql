-- Return the next queues and names of tasks that wait for code, and since when the first one waits: a loose index scan.
-- Parameters: backend, after_queue, after_name, group_limit. Index: jobqueue_task_awaiting_code, one step for each queue and name. Locks: none.
WITH RECURSIVE step AS (
    (
        SELECT queue_name, task_type, awaits_code_since FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'AWAITING_CODE'
            AND (queue_name, task_type) > (%(after_queue)s, %(after_name)s)
        ORDER BY backend, queue_name, task_type, awaits_code_since LIMIT 1
    )
    UNION ALL
    SELECT following.queue_name, following.task_type, following.awaits_code_since
    FROM step CROSS JOIN LATERAL (
        SELECT task.queue_name, task.task_type, task.awaits_code_since FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.status = 'AWAITING_CODE'
            AND (task.queue_name, task.task_type) > (step.queue_name, step.task_type)
        ORDER BY task.backend, task.queue_name, task.task_type, task.awaits_code_since LIMIT 1
    ) AS following
)
SELECT queue_name, task_type, awaits_code_since FROM step LIMIT %(group_limit)s

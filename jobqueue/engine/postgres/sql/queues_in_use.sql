-- Return the queues of a backend that hold READY tasks. A loose index scan, one step per queue.
-- Parameters: backend. Index: jobqueue_task_ready. Locks: none.
WITH RECURSIVE step AS (
    (
        SELECT queue_name FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'READY' ORDER BY backend, queue_name LIMIT 1
    )
    UNION ALL
    SELECT following.queue_name
    FROM step CROSS JOIN LATERAL (
        SELECT task.queue_name FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.status = 'READY' AND task.queue_name > step.queue_name
        ORDER BY task.backend, task.queue_name LIMIT 1
    ) AS following
)
SELECT queue_name FROM step

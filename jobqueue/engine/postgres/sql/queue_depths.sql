-- Count the waiting tasks by queue and state, up to a limit.
-- Parameters: backend; queues: those that hold READY tasks; depth_limit, queue_limit.
-- Index: jobqueue_task_ready; jobqueue_task_waiting and jobqueue_task_awaiting_code, also to find their queues, one step
--   per queue. Locks: none.
-- Trap: count() drops the ORDER BY that leads the planner to the index, unless there is a LIMIT in between.
WITH RECURSIVE waiting AS (
    (
        SELECT queue_name, status FROM jobqueue_task
        WHERE backend = %(backend)s AND status IN ('BLOCKED', 'SCHEDULED', 'SUSPENDED')
        ORDER BY backend, queue_name, status LIMIT 1
    )
    UNION ALL
    SELECT following.queue_name, following.status
    FROM waiting CROSS JOIN LATERAL (
        SELECT task.queue_name, task.status FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.status IN ('BLOCKED', 'SCHEDULED', 'SUSPENDED')
            AND (task.queue_name, task.status) > (waiting.queue_name, waiting.status)
        ORDER BY task.backend, task.queue_name, task.status LIMIT 1
    ) AS following
)
SELECT in_use.queue_name, 'READY', (
    SELECT count(*) FROM (
        SELECT FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.queue_name = in_use.queue_name AND task.status = 'READY'
        ORDER BY task.backend, task.queue_name LIMIT %(depth_limit)s
    ) AS ready
)
FROM unnest(%(queues)s::text[]) AS in_use (queue_name)
UNION ALL
SELECT kept.queue_name, kept.status, (
    SELECT count(*) FROM (
        SELECT FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.queue_name = kept.queue_name AND task.status = kept.status
            AND task.status IN ('BLOCKED', 'SCHEDULED', 'SUSPENDED')
        ORDER BY task.backend, task.queue_name, task.status LIMIT %(depth_limit)s
    ) AS counted
)
FROM (SELECT * FROM waiting LIMIT %(queue_limit)s) AS kept
UNION ALL
SELECT without_code.queue_name, 'AWAITING_CODE', (
    SELECT count(*) FROM (
        SELECT FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.queue_name = without_code.queue_name AND task.status = 'AWAITING_CODE'
        ORDER BY task.backend, task.queue_name LIMIT %(depth_limit)s
    ) AS counted
)
FROM (
    WITH RECURSIVE step AS (
        (
            SELECT queue_name FROM jobqueue_task
            WHERE backend = %(backend)s AND status = 'AWAITING_CODE' ORDER BY backend, queue_name LIMIT 1
        )
        UNION ALL
        SELECT following.queue_name
        FROM step CROSS JOIN LATERAL (
            SELECT task.queue_name FROM jobqueue_task AS task
            WHERE task.backend = %(backend)s AND task.status = 'AWAITING_CODE' AND task.queue_name > step.queue_name
            ORDER BY task.backend, task.queue_name LIMIT 1
        ) AS following
    )
    SELECT queue_name FROM step LIMIT %(queue_limit)s
) AS without_code

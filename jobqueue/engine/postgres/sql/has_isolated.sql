-- Whether a READY task of some queues lost executors before: one row, or none; paused queues are left out.
-- Parameters: backend, queues.
-- Index: jobqueue_task_suspects, one step per queue; a walk along the ready index would read every task that waits.
-- Locks: none.
SELECT TRUE
FROM unnest(%(queues)s::text[]) AS asked (name)
CROSS JOIN LATERAL (
    SELECT task.id
    FROM jobqueue_task AS task
    WHERE task.backend = %(backend)s AND task.queue_name = asked.name AND task.status = 'READY' AND task.executor_losses >= 2
    ORDER BY task.rank, task.id
    LIMIT 1
) AS suspect
WHERE NOT EXISTS (
    SELECT FROM jobqueue_queue AS queue
    WHERE queue.backend = %(backend)s AND queue.name = asked.name AND queue.paused_at IS NOT NULL
        AND (queue.resume_at IS NULL OR queue.resume_at > clock_timestamp())
)
LIMIT 1

-- Find the best READY task of each queue that has to run alone, because it lost executors. Skips paused queues.
-- Parameters: backend, queues. Locks: none.
-- Index: jobqueue_task_isolated, one step per queue. The claim's index would read every READY task.
SELECT isolated.id FROM unnest(%(queues)s::text[]) AS asked (name)
CROSS JOIN LATERAL (
    SELECT task.id, task.rank FROM jobqueue_task AS task
    WHERE task.backend = %(backend)s AND task.queue_name = asked.name AND task.status = 'READY'
        AND task.executor_losses >= {isolation_losses}
    ORDER BY task.rank, task.id LIMIT 1
) AS isolated
WHERE NOT EXISTS (
    SELECT FROM jobqueue_queue AS queue
    WHERE queue.backend = %(backend)s AND queue.name = asked.name AND {is_paused}
)
ORDER BY isolated.rank, isolated.id

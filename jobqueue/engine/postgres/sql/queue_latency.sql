-- Return for each queue with READY tasks the seconds that the oldest of the next ones has waited, and whether the queue
-- is paused.
-- Parameters: backend, queues; aging: seconds per point of priority; task_limit: how many tasks of each queue and pool
--   are read. Index: jobqueue_task_ready. Locks: none.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
SELECT
    in_use.queue_name,
    EXTRACT(EPOCH FROM clock.now - oldest.ready_at)::float8,
    EXISTS (
        SELECT FROM jobqueue_queue AS queue
        WHERE queue.backend = %(backend)s AND queue.name = in_use.queue_name AND {is_paused}
    )
FROM clock
CROSS JOIN unnest(%(queues)s::text[]) AS in_use (queue_name)
CROSS JOIN LATERAL (
    SELECT min(head.rank + make_interval(secs => head.priority * %(aging)s::float8)) AS ready_at
    FROM (
        SELECT slice.rank, slice.priority
        FROM (VALUES ('threads'), ('async')) AS pool (name)
        CROSS JOIN LATERAL (
            SELECT task.rank, task.priority FROM jobqueue_task AS task
            WHERE task.backend = %(backend)s AND task.queue_name = in_use.queue_name AND task.pool = pool.name
                AND task.status = 'READY'
            ORDER BY task.backend, task.queue_name, task.pool, task.rank, task.id LIMIT %(task_limit)s
        ) AS slice
    ) AS head
) AS oldest
WHERE oldest.ready_at IS NOT NULL
ORDER BY in_use.queue_name

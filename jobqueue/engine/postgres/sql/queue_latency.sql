-- Return for each queue with READY tasks the seconds that the oldest of the next ones has waited, whether the queue is
-- paused, and whether a live executor serves it.
-- Parameters: backend, queues; aging: seconds per point of priority; timeout: seconds without a heartbeat after which an
--   executor is lost; task_limit: how many tasks of each queue and pool are read. Index: jobqueue_task_ready. Locks: none.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
alive AS MATERIALIZED (
    SELECT executor.queues
    FROM jobqueue_executor AS executor, clock
    WHERE executor.backend = %(backend)s AND executor.state = 'RUNNING'
        AND {last_heartbeat} > clock.now - make_interval(secs => %(timeout)s)
)
SELECT
    in_use.queue_name,
    EXTRACT(EPOCH FROM clock.now - oldest.ready_at)::float8,
    EXISTS (
        SELECT FROM jobqueue_queue AS queue
        WHERE queue.backend = %(backend)s AND queue.name = in_use.queue_name AND {is_paused}
    ),
    EXISTS (SELECT FROM alive WHERE alive.queues = '[]' OR alive.queues @> to_jsonb(in_use.queue_name::text))
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

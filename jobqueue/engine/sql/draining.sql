-- Say of each queue that holds READY tasks (a loose index scan, one step per queue) how long the oldest of the next ones
-- has been ready, in seconds, whether it is paused, and whether a living executor serves it.
-- Parameters: backend; aging: seconds per point of priority; timeout: seconds without a beat after which an executor is
--   not alive; queue_limit, task_limit: how many queues, and tasks of each, are read.
-- Index: jobqueue_task_ready. Locks: none.
WITH RECURSIVE clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
step AS (
    (
        SELECT queue_name FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'READY'
        ORDER BY backend, queue_name LIMIT 1
    )
    UNION ALL
    SELECT following.queue_name
    FROM step
    CROSS JOIN LATERAL (
        SELECT task.queue_name FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.status = 'READY' AND task.queue_name > step.queue_name
        ORDER BY task.backend, task.queue_name LIMIT 1
    ) AS following
),
in_use AS MATERIALIZED (SELECT queue_name FROM step LIMIT %(queue_limit)s),
alive AS MATERIALIZED (
    SELECT executor.queues
    FROM jobqueue_executor AS executor, clock
    WHERE executor.backend = %(backend)s AND executor.state = 'RUNNING'
        AND executor.heartbeat > clock.now - make_interval(secs => %(timeout)s)
)
SELECT
    in_use.queue_name,
    EXTRACT(EPOCH FROM clock.now - oldest.ready_at)::float8,
    EXISTS (
        SELECT FROM jobqueue_queue AS queue
        WHERE queue.backend = %(backend)s AND queue.name = in_use.queue_name AND queue.paused_at IS NOT NULL
            AND (queue.resume_at IS NULL OR queue.resume_at > clock.now)
    ),
    EXISTS (SELECT FROM alive WHERE alive.queues = '[]' OR alive.queues @> to_jsonb(in_use.queue_name::text))
FROM clock
CROSS JOIN in_use
CROSS JOIN LATERAL (
    SELECT min(head.rank + make_interval(secs => head.priority * %(aging)s::float8)) AS ready_at
    FROM (
        SELECT task.rank, task.priority FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.queue_name = in_use.queue_name AND task.status = 'READY'
        ORDER BY task.backend, task.queue_name, task.rank, task.id LIMIT %(task_limit)s
    ) AS head
) AS oldest
WHERE oldest.ready_at IS NOT NULL
ORDER BY in_use.queue_name

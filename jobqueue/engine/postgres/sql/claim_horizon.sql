-- Find the rank down to which a claim of many queues must look, so that it locks few rows that it does not take.
-- Parameters: those of open_queue.sql; pool; places: positions in the order of rank; wanted: the last of them;
--   sample_size: tasks of each queue to read first; free_slots: the maximum for a limited queue.
-- Answer: for each position the rank (as text, which is exact) and id of its task, NULL behind the end.
-- Index: jobqueue_task_ready, one slice for each queue, in order of rank. Locks: none; rows that others lock are counted.
-- If the whole sample of a queue ranks before the last position, the queue is read again, down to that rank.
WITH open_queue AS MATERIALIZED ({open_queue}),
wanted_queue AS (
    SELECT name, LEAST(%(wanted)s::int, max_tasks, CASE WHEN is_limited THEN %(free_slots)s::int END) AS max_tasks FROM open_queue
),
sample AS MATERIALIZED (
    SELECT queue.name, queue.max_tasks, head.rank, head.id
    FROM wanted_queue AS queue CROSS JOIN LATERAL (
        SELECT task.rank, task.id FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.queue_name = queue.name AND task.pool = %(pool)s
            AND task.status = 'READY' AND task.executor_losses < {isolation_losses}
        ORDER BY task.backend, task.queue_name, task.pool, task.rank, task.id
        LIMIT LEAST(queue.max_tasks, %(sample_size)s::int)
    ) AS head
),
horizon AS MATERIALIZED (
    SELECT COALESCE(
        (SELECT rank FROM sample ORDER BY rank, id LIMIT 1 OFFSET %(wanted)s::int - 1), 'infinity'::timestamptz
    ) AS rank
),
deep_queue AS MATERIALIZED (
    SELECT name, max_tasks FROM sample GROUP BY name, max_tasks
    HAVING count(*) >= %(sample_size)s::int AND max(rank) <= (SELECT rank FROM horizon)
),
seen AS MATERIALIZED (
    SELECT rank, id FROM sample WHERE name <> ALL(ARRAY(SELECT name FROM deep_queue))
    UNION ALL
    SELECT head.rank, head.id
    FROM deep_queue CROSS JOIN LATERAL (
        SELECT task.rank, task.id FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.queue_name = deep_queue.name AND task.pool = %(pool)s
            AND task.status = 'READY' AND task.executor_losses < {isolation_losses} AND task.rank <= (SELECT rank FROM horizon)
        ORDER BY task.backend, task.queue_name, task.pool, task.rank, task.id
        LIMIT deep_queue.max_tasks
    ) AS head
)
SELECT reached.rank::text, reached.id
FROM unnest(%(places)s::int[]) WITH ORDINALITY AS asked (place, number)
LEFT JOIN LATERAL (SELECT rank, id FROM seen ORDER BY rank, id LIMIT 1 OFFSET asked.place - 1) AS reached ON TRUE
ORDER BY asked.number

-- Look for the best READY tasks of many queues, and say which queues hold them and how far down in rank they reach: a
-- claim that goes no further locks what it takes and little else.
-- Parameters: backend, queues, locked, only, but, suspects, depth: as in claim.sql;
--   most: for each of the queues in turn of how many to know, NULL or no entry for any number;
--   wanted: how many of all the queues; near: after how many of them a claim that nobody is in the way of has enough;
--   glance: how many of each are looked at first.
-- Answer: one row: rank (as text, which comes back as it was, whatever USE_TZ is) and id of the task at `near`, and of the
-- last, NULL where nothing is left behind it; names of the queues.
-- Index: jobqueue_task_ready, a slice per queue, in order of rank. Locks: none; what others have locked counts.
-- The best of a hundred queues are a few of each, or nearly all of one: a look at a few of each tells in which there may be
-- more. Those are looked at again, the deeper the fewer they are, and the denser their tasks follow on one another in rank.
-- Of a queue that may hold still more of the best, what is behind the last that was seen is not known: there the look ends.
WITH open_queue AS MATERIALIZED (
    SELECT asked.name, asked.most
    FROM unnest(%(queues)s::text[], %(most)s::int[]) AS asked (name, most)
    WHERE asked.name NOT IN (
        SELECT queue.name
        FROM jobqueue_queue AS queue
        WHERE queue.backend = %(backend)s AND queue.name = ANY(%(queues)s::text[]) AND (
            (queue.paused_at IS NOT NULL AND (queue.resume_at IS NULL OR queue.resume_at > clock_timestamp()))
            OR (queue.max_running IS NOT NULL AND queue.name <> ALL(%(locked)s::text[]))
        )
    )
),
shallow AS MATERIALIZED (
    SELECT open_queue.name, open_queue.most, head.rank, head.id
    FROM open_queue
    CROSS JOIN LATERAL (
        SELECT near.rank, near.id
        FROM (
            SELECT task.rank, task.id, task.task_type
            FROM jobqueue_task AS task
            WHERE task.backend = %(backend)s AND task.queue_name = open_queue.name AND task.status = 'READY'
                AND (task.executor_losses >= 2) = %(suspects)s::bool
            ORDER BY task.backend, task.queue_name, task.rank, task.id
            LIMIT %(depth)s::int
        ) AS near
        WHERE (%(only)s::text[] IS NULL OR near.task_type = ANY(%(only)s::text[]))
            AND (%(but)s::text[] IS NULL OR near.task_type <> ALL(%(but)s::text[]))
        ORDER BY near.rank, near.id
        LIMIT LEAST(open_queue.most, %(glance)s::int)
    ) AS head
),
horizon AS MATERIALIZED (
    SELECT COALESCE(
        (SELECT rank FROM shallow ORDER BY rank, id LIMIT 1 OFFSET %(wanted)s::int - 1), 'infinity'::timestamptz
    ) AS rank
),
dense_queue AS MATERIALIZED (
    SELECT name, most, 1 / (0.001 + date_part('epoch', max(rank) - (SELECT min(rank) FROM shallow))) AS density
    FROM shallow
    GROUP BY name, most
    HAVING count(*) >= %(glance)s::int AND max(rank) <= (SELECT rank FROM horizon)
),
deep_queue AS MATERIALIZED (
    SELECT name, most, LEAST(%(wanted)s::int, %(glance)s::int + ceil(
        1.5 * %(wanted)s::int * (1.0 / count(*) OVER () + density / sum(density) OVER ())
    )::int) AS glance
    FROM dense_queue
),
deep AS MATERIALIZED (
    SELECT head.rank, head.id, head.place = deep_queue.glance AS is_cut
    FROM deep_queue
    CROSS JOIN LATERAL (
        SELECT near.rank, near.id, row_number() OVER (ORDER BY near.rank, near.id) AS place
        FROM (
            SELECT task.rank, task.id, task.task_type
            FROM jobqueue_task AS task
            WHERE task.backend = %(backend)s AND task.queue_name = deep_queue.name AND task.status = 'READY'
                AND (task.executor_losses >= 2) = %(suspects)s::bool
                AND task.rank <= (SELECT rank FROM horizon)
            ORDER BY task.backend, task.queue_name, task.rank, task.id
            LIMIT %(depth)s::int
        ) AS near
        WHERE (%(only)s::text[] IS NULL OR near.task_type = ANY(%(only)s::text[]))
            AND (%(but)s::text[] IS NULL OR near.task_type <> ALL(%(but)s::text[]))
        ORDER BY near.rank, near.id
        LIMIT LEAST(deep_queue.most, deep_queue.glance)
    ) AS head
),
seen AS MATERIALIZED (
    SELECT rank, id FROM deep
    UNION ALL
    SELECT rank, id FROM shallow
    WHERE rank <= (SELECT rank FROM horizon) AND name <> ALL(ARRAY(SELECT name FROM deep_queue))
),
last AS MATERIALIZED (
    SELECT rank, id
    FROM (
        (SELECT rank, id FROM seen ORDER BY rank, id LIMIT 1 OFFSET %(wanted)s::int - 1)
        UNION ALL
        SELECT rank, id FROM deep WHERE is_cut
    ) AS ends
    ORDER BY rank, id
    LIMIT 1
),
near AS MATERIALIZED (
    SELECT rank, id
    FROM (
        (SELECT rank, id FROM seen ORDER BY rank, id LIMIT 1 OFFSET %(near)s::int - 1)
        UNION ALL
        SELECT rank, id FROM last
    ) AS ends
    ORDER BY rank, id
    LIMIT 1
)
SELECT
    (SELECT rank::text FROM near), (SELECT id FROM near), (SELECT rank::text FROM last), (SELECT id FROM last),
    ARRAY(SELECT name FROM shallow GROUP BY name HAVING min(rank) <= COALESCE((SELECT rank FROM last), 'infinity'))

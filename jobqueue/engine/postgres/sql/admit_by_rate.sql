-- Make the BLOCKED tasks of rate keys READY, lowest rank first, as many as their rate allows now.
-- Return their queues with their numbers. If it has inserted requests, return a row without a queue.
-- Parameters: backend; keys, which this transaction has locked; aging: seconds per point of priority; groups: with a high
--   limit, tasks are admitted in that many groups in each period; unstarted: when to look again if all tasks that
--   count are READY; at_once: how many tasks of each key it admits at most; again: when to look again if another
--   session has locked a task.
-- Index: jobqueue_task_rated, jobqueue_ratestart_key: the starts of one period for each key.
-- Locks: the admitted tasks FOR NO KEY UPDATE, skipping locked ones.
-- What counts: the starts of bodies within the period; and the tasks that were admitted and whose start is not counted
--   yet, because each of them may start at any moment. So no window has more starts than the limit, however long a task
--   waits after its admission or its claim; and a claim that ends without a start takes nothing from the rate.
-- If BLOCKED tasks are left, it requests to look again when a start is older than the period. If the same or an earlier
--   request exists, it inserts none.
WITH limited AS MATERIALIZED (
    SELECT asked.key, clock.now, following.rate_seconds AS seconds,
        clock.now - make_interval(secs => following.rate_seconds) AS since,
        COALESCE(
            (
                SELECT number FROM jobqueue_limit
                WHERE backend = %(backend)s AND kind = 'rate' AND key IN (asked.key, split_part(asked.key, ':', 1) || ':')
                ORDER BY length(key) DESC LIMIT 1
            ),
            following.rate_limit
        ) AS number
    FROM unnest(%(keys)s::text[]) AS asked (key)
    CROSS JOIN (SELECT clock_timestamp() AS now) AS clock
    CROSS JOIN LATERAL (
        SELECT task.rate_limit, task.rate_seconds FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = asked.key AND task.status = 'BLOCKED'
            AND (task.concurrency_key IS NULL OR task.counts_while_waiting)
        ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id LIMIT 1
    ) AS following
),
started AS MATERIALIZED (
    SELECT limited.key, start.started_at AS at
    FROM limited CROSS JOIN LATERAL (
        SELECT started_at FROM jobqueue_ratestart
        WHERE backend = %(backend)s AND key = limited.key AND started_at > limited.since
    ) AS start
),
open AS MATERIALIZED (
    SELECT limited.*, limited.number - (SELECT count(*) FROM started WHERE started.key = limited.key) - (
        SELECT count(*) FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = limited.key AND task.status = 'READY'
    ) - (
        SELECT count(*) FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = limited.key AND task.status = 'RUNNING'
            AND task.start_counted_at IS NULL
    ) AS allowed
    FROM limited
),
best AS MATERIALIZED (
    SELECT open.key, head.id
    FROM open CROSS JOIN LATERAL (
        SELECT task.id FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = open.key AND task.status = 'BLOCKED'
            AND (task.concurrency_key IS NULL OR task.counts_while_waiting)
        ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id
        LIMIT LEAST(GREATEST(0, open.allowed), %(at_once)s)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
),
admitted AS (
    UPDATE jobqueue_task AS task
    SET status = 'READY', counts_while_waiting = FALSE, start_counted_at = NULL,
        rank = (SELECT clock_timestamp()) - make_interval(secs => task.priority * %(aging)s::float8)
    WHERE task.id = ANY(ARRAY(SELECT id FROM best))
    RETURNING task.queue_name
),
asked_again AS (
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at)
    SELECT %(backend)s, 'rate', open.key, next.due_at
    FROM open LEFT JOIN (SELECT key, count(*) AS number FROM best GROUP BY key) AS taken USING (key)
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN taken.number = %(at_once)s AND open.allowed > taken.number THEN open.now
            -- Another session has locked one.
            WHEN open.allowed > COALESCE(taken.number, 0) THEN open.now + make_interval(secs => %(again)s)
            ELSE COALESCE(
                (
                    SELECT started.at FROM started WHERE started.key = open.key
                    ORDER BY started.at LIMIT 1 OFFSET (open.number - 1) / %(groups)s
                ) + make_interval(secs => open.seconds),
                open.now + make_interval(secs => LEAST(open.seconds, %(unstarted)s))
            )
        END AS due_at
    ) AS next
    WHERE (
        SELECT TRUE FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = open.key AND task.status = 'BLOCKED'
            AND (task.concurrency_key IS NULL OR task.counts_while_waiting)
        ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id OFFSET taken.number LIMIT 1
    ) IS NOT NULL AND NOT EXISTS (
        SELECT FROM jobqueue_admissionrequest AS asked
        WHERE asked.backend = %(backend)s AND asked.kind = 'rate' AND asked.key = open.key
            AND asked.due_at > open.now AND asked.due_at <= next.due_at
    )
    RETURNING id
)
SELECT queue_name, count(*) FROM admitted GROUP BY 1
UNION ALL
SELECT NULL, count(*) FROM asked_again HAVING count(*) > 0

-- Make the BLOCKED tasks of rate keys READY, lowest rank first, as many as their rate allows now.
-- Return their queues with their numbers. If it has inserted requests, return a row without a queue.
-- Parameters: backend; keys, which this transaction has locked; numbers, seconds: of rates_to_count.sql; aging: seconds
--   per point of priority; groups: with a high limit, tasks are admitted in that many groups in each period; at_once: how
--   many tasks of each key it admits at most; again: when to look again if another session has locked a task.
-- Index: jobqueue_task_rated; jobqueue_ratestart_key: the starts of one period for each key; jobqueue_admission_key.
-- Locks: the admitted tasks FOR NO KEY UPDATE, skipping locked ones.
-- What counts: the starts of bodies within the period; and the tasks that were admitted and whose start is not counted
--   yet, because each of them may start at any moment. So no window has more starts than the limit, however long a task
--   waits after its admission or its claim; and a claim that ends without a start takes nothing from the rate.
-- If BLOCKED tasks are left, it plans the next look: a request that is due when a start is older than the period, with
--   the number of the limit. Without any start, none is due: the first start that is counted requests a look.
-- A start that is further ahead than a period is ignored: the server's clock was set back.
WITH limited AS MATERIALIZED (
    SELECT given.key, given.number, make_interval(secs => given.seconds) AS seconds, (SELECT clock_timestamp()) AS now
    FROM unnest(%(keys)s::text[], %(numbers)s::int[], %(seconds)s::float8[]) AS given (key, number, seconds)
),
open AS MATERIALIZED (
    SELECT limited.*, started.number AS started, limited.number - started.number - starting.number AS allowed
    FROM limited
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM jobqueue_ratestart
        WHERE backend = %(backend)s AND key = limited.key AND started_at > limited.now - limited.seconds
            AND started_at <= limited.now + limited.seconds
    ) AS started
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM jobqueue_task AS task
        WHERE {rated} AND task.rate_key = limited.key AND task.status IN ('READY', 'RUNNING')
    ) AS starting
),
best AS MATERIALIZED (
    SELECT open.key, head.id
    FROM open CROSS JOIN LATERAL (
        SELECT task.id FROM jobqueue_task AS task
        WHERE {rated} AND task.rate_key = open.key AND task.status = (SELECT 'BLOCKED')
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
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at, number, is_urgent)
    SELECT %(backend)s, 'rate', open.key, next.due_at, next.number, next.number IS NULL
    FROM open LEFT JOIN (SELECT key, count(*) AS number FROM best GROUP BY key) AS taken USING (key)
    CROSS JOIN LATERAL (
        SELECT open.now + make_interval(secs => CASE WHEN taken.number = %(at_once)s THEN 0 ELSE %(again)s END) AS due_at,
            NULL::int AS number
        WHERE open.allowed > COALESCE(taken.number, 0)
        UNION ALL
        (
            SELECT started_at + open.seconds, open.number FROM jobqueue_ratestart
            WHERE backend = %(backend)s AND key = open.key AND started_at > open.now - open.seconds
                AND open.allowed <= COALESCE(taken.number, 0)
            ORDER BY backend, key, started_at LIMIT 1
            OFFSET GREATEST(0, LEAST(GREATEST(0, -open.allowed) + (open.number - 1) / %(groups)s, open.started - 1))
        )
    ) AS next
    WHERE (
        SELECT TRUE FROM jobqueue_task AS task
        WHERE {rated} AND task.rate_key = open.key AND task.status = (SELECT 'BLOCKED')
        ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id OFFSET taken.number LIMIT 1
    ) IS NOT NULL AND NOT EXISTS (
        SELECT FROM jobqueue_admissionrequest AS asked
        WHERE asked.backend = %(backend)s AND asked.kind = 'rate' AND asked.key = open.key
            AND (asked.number = next.number OR (next.number IS NULL AND asked.is_urgent))
            AND asked.due_at > open.now AND asked.due_at <= next.due_at
    )
    RETURNING number
)
SELECT queue_name, count(*) FROM admitted GROUP BY 1
UNION ALL
SELECT NULL, count(*) FROM asked_again HAVING count(*) > 0

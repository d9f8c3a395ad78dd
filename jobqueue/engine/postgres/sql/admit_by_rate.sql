-- Make the best BLOCKED tasks of rate keys READY, as many as their rate allows now.
-- Return their queues and numbers, and one row without a queue if it has requested to look again.
-- Parameters: backend; keys, which this transaction has locked; aging: seconds per point of priority; group_size: tasks
--   of a high limit are admitted in groups, so that a window has this many; unstarted_seconds: when to look again while
--   the tasks that count are READY.
-- Index: jobqueue_task_rate, jobqueue_task_rate_start, jobqueue_ratestart_key: the starts of one window for each key.
-- Locks: the admitted tasks FOR NO KEY UPDATE, skipping locked ones.
-- What counts: starts within the window, by last_attempted_at; earlier starts of tasks that have started again since,
--   which this statement stores in jobqueue_ratestart; and READY tasks, which will start.
-- If BLOCKED tasks are left, it requests to look again when a start leaves the window, unless that or an earlier look is
--   requested already.
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
            AND task.predecessor_id IS NULL AND (task.concurrency_key IS NULL OR task.still_counts)
        ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id LIMIT 1
    ) AS following
),
started AS MATERIALIZED (
    SELECT limited.key, start.at
    FROM limited CROSS JOIN LATERAL (
        SELECT task.last_attempted_at AS at FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = limited.key AND task.last_attempted_at > limited.since
            AND task.status <> 'READY'
        UNION ALL
        SELECT earlier.started_at FROM jobqueue_ratestart AS earlier
        WHERE earlier.backend = %(backend)s AND earlier.key = limited.key AND earlier.started_at > limited.since
    ) AS start
),
open AS MATERIALIZED (
    SELECT limited.*, limited.number - (SELECT count(*) FROM started WHERE started.key = limited.key) - (
        SELECT count(*) FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = limited.key AND task.status = 'READY'
    ) AS allowed
    FROM limited
),
best AS MATERIALIZED (
    SELECT open.key, head.id
    FROM open CROSS JOIN LATERAL (
        SELECT task.id FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = open.key AND task.status = 'BLOCKED'
            AND task.predecessor_id IS NULL AND (task.concurrency_key IS NULL OR task.still_counts)
        ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id
        LIMIT GREATEST(0, open.allowed)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
),
recorded AS (
    INSERT INTO jobqueue_ratestart (backend, key, started_at, expires_at)
    SELECT %(backend)s, open.key, task.last_attempted_at, task.last_attempted_at + make_interval(secs => open.seconds)
    FROM best JOIN open USING (key) JOIN jobqueue_task AS task ON task.id = best.id
    WHERE task.last_attempted_at > open.since
),
admitted AS (
    UPDATE jobqueue_task AS task
    SET status = 'READY', still_counts = FALSE,
        rank = (SELECT clock_timestamp()) - make_interval(secs => task.priority * %(aging)s::float8)
    WHERE task.id = ANY(ARRAY(SELECT id FROM best))
    RETURNING task.queue_name
),
asked_again AS (
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at)
    SELECT %(backend)s, 'rate', open.key, next.due_at
    FROM open CROSS JOIN LATERAL (
        SELECT CASE
            WHEN open.allowed > (SELECT count(*) FROM best WHERE best.key = open.key)  -- another session has locked one
            THEN open.now + make_interval(secs => %(again_seconds)s)
            ELSE COALESCE(
                (
                    SELECT started.at FROM started WHERE started.key = open.key
                    ORDER BY started.at LIMIT 1 OFFSET (open.number - 1) / %(group_size)s
                ) + make_interval(secs => open.seconds),
                open.now + make_interval(secs => LEAST(open.seconds, %(unstarted_seconds)s))
            )
        END AS due_at
    ) AS next
    WHERE (
        SELECT TRUE FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.rate_key = open.key AND task.status = 'BLOCKED'
            AND task.predecessor_id IS NULL AND (task.concurrency_key IS NULL OR task.still_counts)
            AND task.id <> ALL(ARRAY(SELECT id FROM best))
        ORDER BY task.backend, task.rate_key, task.status, task.rank LIMIT 1
    ) IS NOT NULL AND NOT EXISTS (
        SELECT FROM jobqueue_admissionrequest AS asked
        WHERE asked.backend = %(backend)s AND asked.kind = 'rate' AND asked.key = open.key
            AND asked.due_at > open.now AND asked.due_at <= next.due_at
    )
    RETURNING id
)
SELECT queue_name, count(*) FROM admitted GROUP BY queue_name
UNION ALL
SELECT NULL, count(*) FROM asked_again HAVING count(*) > 0

-- Let the BLOCKED tasks of concurrency keys count, lowest rank first, as many as the limit allows. Those without a rate
-- become READY. Those with a rate stay BLOCKED, and the statement requests to look at their rate.
-- Return the queues of the READY tasks with their numbers. If it has inserted requests, return a row without a queue.
-- Parameters: backend; keys, which this transaction has locked; aging: seconds per point of priority; at_once: how many
--   tasks of each key it admits at most, because a large limit must not hold up the executor; again_seconds: when to look
--   again at a key if another session has locked one of its tasks.
-- Index: jobqueue_task_concurrency: one entry for each task that counts, as many as the limit at most; two for each that
--   is admitted.
-- Locks: the admitted tasks FOR NO KEY UPDATE, skipping locked ones. If it skips one, or stops at at_once, it requests to
--   look again.
-- Why (SELECT 'BLOCKED'): with a constant, the planner may prefer jobqueue_task_waiting, and then reads and sorts all BLOCKED
--   tasks: it happened where the statistics were older than these tasks.
-- Why a new rank: with its old one, each admitted task would overtake tasks of other keys that became READY before it.
-- Which number: that of the key, if people have set one; else that of all keys of the limit; else that of the next task.
WITH limited AS MATERIALIZED (
    SELECT asked.key, wanted.number - counting.number AS allowed
    FROM unnest(%(keys)s::text[]) AS asked (key)
    CROSS JOIN LATERAL (
        SELECT task.concurrency_limit FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.concurrency_key = asked.key AND NOT task.counts_while_waiting
            AND task.status = (SELECT 'BLOCKED') AND task.finished_at IS NULL
        ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting, task.status, task.rank, task.id LIMIT 1
    ) AS following
    CROSS JOIN LATERAL (
        SELECT COALESCE(
            (
                SELECT number FROM jobqueue_limit
                WHERE backend = %(backend)s AND kind = 'concurrency'
                    AND key IN (asked.key, split_part(asked.key, ':', 1) || ':')
                ORDER BY length(key) DESC LIMIT 1
            ),
            following.concurrency_limit
        ) AS number
    ) AS wanted
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            (
                SELECT FROM jobqueue_task AS task
                WHERE task.backend = %(backend)s AND task.concurrency_key = asked.key AND NOT task.counts_while_waiting
                    AND task.status = (SELECT 'RUNNING') AND task.finished_at IS NULL
                ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting, task.status, task.rank, task.id
                LIMIT wanted.number
            )
            UNION ALL
            (
                SELECT FROM jobqueue_task AS task
                WHERE task.backend = %(backend)s AND task.concurrency_key = asked.key AND NOT task.counts_while_waiting
                    AND task.status = (SELECT 'READY') AND task.finished_at IS NULL
                ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting, task.status, task.rank, task.id
                LIMIT wanted.number
            )
            UNION ALL
            (
                SELECT FROM jobqueue_task AS task
                WHERE task.backend = %(backend)s AND task.concurrency_key = asked.key AND task.counts_while_waiting
                    AND task.finished_at IS NULL
                ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting LIMIT wanted.number
            )
            LIMIT wanted.number
        ) AS counted
    ) AS counting
),
best AS MATERIALIZED (
    SELECT limited.key, head.id
    FROM limited CROSS JOIN LATERAL (
        SELECT task.id FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.concurrency_key = limited.key AND NOT task.counts_while_waiting
            AND task.status = (SELECT 'BLOCKED') AND task.finished_at IS NULL
        ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting, task.status, task.rank, task.id
        LIMIT LEAST(GREATEST(0, limited.allowed), %(at_once)s)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
),
admitted AS (
    UPDATE jobqueue_task AS task
    SET counts_while_waiting = task.rate_key IS NOT NULL,
        status = CASE WHEN task.rate_key IS NULL THEN 'READY' ELSE 'BLOCKED' END,
        rank = CASE WHEN task.rate_key IS NULL
            THEN (SELECT clock_timestamp()) - make_interval(secs => task.priority * %(aging)s::float8)
            ELSE task.rank
        END
    WHERE task.id = ANY(ARRAY(SELECT id FROM best))
    RETURNING task.queue_name, task.status, task.rate_key
),
asked_of_rate AS (
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at)
    SELECT DISTINCT %(backend)s, 'rate', rate_key, clock_timestamp() FROM admitted WHERE status = 'BLOCKED'
    RETURNING id
),
asked_again AS (
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at)
    SELECT %(backend)s, 'concurrency', limited.key,
        clock_timestamp() + make_interval(secs => CASE WHEN taken.number < %(at_once)s THEN %(again_seconds)s ELSE 0 END)
    FROM limited
    LEFT JOIN (SELECT key, count(*) AS found FROM best GROUP BY key) AS counted USING (key)
    CROSS JOIN LATERAL (SELECT COALESCE(counted.found, 0) AS number) AS taken
    WHERE limited.allowed > taken.number AND (
        SELECT TRUE FROM jobqueue_task AS task
        WHERE task.backend = %(backend)s AND task.concurrency_key = limited.key AND NOT task.counts_while_waiting
            AND task.status = (SELECT 'BLOCKED') AND task.finished_at IS NULL
        ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting, task.status, task.rank, task.id
        OFFSET taken.number LIMIT 1  -- more than those that it has locked
    ) IS NOT NULL
    RETURNING id
)
SELECT queue_name, count(*) FROM admitted WHERE status = 'READY' GROUP BY queue_name
UNION ALL
SELECT NULL, count(*) FROM (SELECT id FROM asked_of_rate UNION ALL SELECT id FROM asked_again) AS asked HAVING count(*) > 0

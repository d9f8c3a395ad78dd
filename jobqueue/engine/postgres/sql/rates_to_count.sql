-- Return the rate keys at which to look now, each with the number of its limit and the seconds of its period.
-- Parameters: backend; keys, which this transaction has locked, and is_urgent for each.
-- Index: jobqueue_task_rated, jobqueue_admission_key: one entry of each for each key. Locks: none.
-- Left out: keys without BLOCKED tasks; and those with a planned look of the same number, unless a request is urgent. Ends
--   and enqueues do not let more tasks start before the planned time. So a period with 100,000 starts is not counted for
--   each of them. A planned look that is further ahead than a period does not count: the server's clock was set back.
-- Which number: that of the key, if people have set one; else that of all keys of the limit; else that of the next task.
SELECT asked.key, wanted.number, following.rate_seconds
FROM unnest(%(keys)s::text[], %(is_urgent)s::bool[]) AS asked (key, is_urgent)
CROSS JOIN LATERAL (
    SELECT task.rate_limit, COALESCE(task.rate_seconds, 1) AS rate_seconds FROM jobqueue_task AS task
    WHERE {rated} AND task.rate_key = asked.key AND task.status = (SELECT 'BLOCKED')
    ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id LIMIT 1
) AS following
CROSS JOIN LATERAL (
    SELECT COALESCE(
        (
            SELECT number FROM jobqueue_limit
            WHERE backend = %(backend)s AND kind = 'rate' AND key IN (asked.key, split_part(asked.key, ':', 1) || ':')
            ORDER BY length(key) DESC LIMIT 1
        ),
        following.rate_limit
    ) AS number
) AS wanted
WHERE asked.is_urgent OR NOT EXISTS (
    SELECT FROM jobqueue_admissionrequest AS planned
    WHERE planned.backend = %(backend)s AND planned.kind = 'rate' AND planned.key = asked.key
        AND planned.number = wanted.number AND planned.due_at > (SELECT clock_timestamp())
        AND planned.due_at <= (SELECT clock_timestamp()) + make_interval(secs => following.rate_seconds)
)

-- Store the starts of bodies for their rates, unless count_starts() has counted them already.
-- A start counts late_seconds later, at most late_part of the period: until then the body may not have reached the
-- server that the rate protects.
-- Part of settle_limits.sql, too.
-- Parameters: begun: a JSON object with the seconds since each task's body has begun; late_seconds; late_part.
-- Index: the primary key. Locks: none; this transaction has locked the rows.
INSERT INTO jobqueue_ratestart (backend, key, started_at, expires_at)
SELECT task.backend, task.rate_key, start.at, start.at + make_interval(secs => task.rate_seconds)
FROM jobqueue_task AS task CROSS JOIN LATERAL (
    SELECT clock_timestamp() - make_interval(secs => GREATEST(
        0, (%(begun)s::jsonb ->> task.id::text)::float8 - LEAST(%(late_seconds)s, task.rate_seconds * %(late_part)s)
    )) AS at
    OFFSET 0
) AS start
WHERE task.id = ANY(ARRAY(SELECT jsonb_object_keys(%(begun)s::jsonb)::uuid))
    AND task.rate_key IS NOT NULL AND task.start_counted_at IS NULL

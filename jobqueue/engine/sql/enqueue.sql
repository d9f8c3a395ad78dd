-- Insert tasks, in the caller's transaction; a row whose key a live task holds is left out of the answer.
-- Parameters: backend; aging: seconds per point of priority; arrays, one element per row, in the order of their keys.
-- Index: unique jobqueue_task_key decides the conflict.
-- Locks: the new rows; waits for a concurrent insert of the same key.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
given AS (
    SELECT
        given.*, clock.now,
        COALESCE(given.alarm_at, clock.now + make_interval(secs => given.alarm_after_seconds)) AS wake_at
    FROM clock, unnest(
        %(ids)s::uuid[], %(queue_names)s::text[], %(task_types)s::text[], %(priorities)s::int[],
        %(args)s::text[], %(kwargs)s::text[], %(options)s::text[], %(metadata)s::text[], %(keys)s::text[],
        %(parent_ids)s::uuid[], %(wake_ats)s::timestamptz[], %(wake_after_seconds)s::float8[],
        %(expires_ats)s::timestamptz[], %(expires_after_seconds)s::float8[], %(max_attempts)s::int[]
    ) AS given (
        id, queue_name, task_type, priority, args, kwargs, options, metadata, key, parent_id, alarm_at,
        alarm_after_seconds, expires_at, expires_after_seconds, max_attempts
    )
)
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id,
    status, wake_at, expires_at, claim_number, worker_ids, attempts, max_attempts, polls, idle_polls, timed_out,
    lost_count, errors, enqueued_at
)
SELECT
    id, %(backend)s, queue_name, task_type, priority, now - make_interval(secs => priority * %(aging)s::float8),
    args::jsonb, kwargs::jsonb, options::jsonb, metadata::jsonb, key, parent_id,
    CASE WHEN wake_at > now THEN 'SCHEDULED' ELSE 'READY' END,
    CASE WHEN wake_at > now THEN wake_at END,
    COALESCE(expires_at, now + make_interval(secs => expires_after_seconds)),
    0, '[]', 0, max_attempts, 0, 0, FALSE, 0, '[]', now
FROM given
ON CONFLICT (backend, key) WHERE finished_at IS NULL AND key IS NOT NULL DO NOTHING
RETURNING id, enqueued_at, status

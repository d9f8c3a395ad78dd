-- Insert tasks, in the caller's transaction; a row whose key a live task holds is left out of the answer.
-- Parameters: backend; aging: seconds per point of priority; arrays, one element per row.
-- Index: unique jobqueue_task_key decides the conflict.
-- Locks: the new rows; waits for a concurrent insert of the same key.
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id,
    status, wake_at, expires_at, claim_number, worker_ids, attempts, max_attempts, polls, lost_count, errors,
    enqueued_at
)
SELECT
    given.id, %(backend)s, given.queue_name, given.task_type, given.priority,
    clock.now - make_interval(secs => given.priority * %(aging)s),
    given.args::jsonb, given.kwargs::jsonb, given.options::jsonb, given.metadata::jsonb, given.key, given.parent_id,
    CASE WHEN clock.wake_at > clock.now THEN 'SCHEDULED' ELSE 'READY' END,
    CASE WHEN clock.wake_at > clock.now THEN clock.wake_at END,
    COALESCE(given.expires_at, clock.now + make_interval(secs => given.expires_after_seconds)),
    0, '[]', 0, given.max_attempts, 0, 0, '[]', clock.now
FROM unnest(
    %(ids)s::uuid[], %(queue_names)s::text[], %(task_types)s::text[], %(priorities)s::int[],
    %(args)s::text[], %(kwargs)s::text[], %(options)s::text[], %(metadata)s::text[], %(keys)s::text[],
    %(parent_ids)s::uuid[], %(wake_ats)s::timestamptz[], %(wake_after_seconds)s::float8[],
    %(expires_ats)s::timestamptz[], %(expires_after_seconds)s::float8[], %(max_attempts)s::int[]
) AS given (
    id, queue_name, task_type, priority, args, kwargs, options, metadata, key, parent_id, wake_at,
    wake_after_seconds, expires_at, expires_after_seconds, max_attempts
)
-- One reading of the clock per row: VALUES is evaluated once, two calls in the list above would differ.
CROSS JOIN LATERAL (
    SELECT moment.now, COALESCE(given.wake_at, moment.now + make_interval(secs => given.wake_after_seconds)) AS wake_at
    FROM (SELECT clock_timestamp() AS now, given.id OFFSET 0) AS moment
) AS clock
ON CONFLICT (backend, key) WHERE finished_at IS NULL AND key IS NOT NULL DO NOTHING
RETURNING id, enqueued_at, status

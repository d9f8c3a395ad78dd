-- Insert one task without a key, in the caller's transaction: planned in a fifth of the time that enqueue.sql takes.
-- Parameters: backend; aging: seconds per point of priority; the columns.
-- Index: none is read. Locks: the new row.
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, idempotency_key, parent_id,
    status, wake_at, expires_at, claim_number, worker_ids, attempts, max_attempts, polls, idle_polls, timed_out,
    lost_count, errors, enqueued_at
)
SELECT
    %(id)s::uuid, %(backend)s::text, %(queue_name)s::text, %(task_type)s::text, %(priority)s::int,
    now - make_interval(secs => %(priority)s::int * %(aging)s::float8), %(args)s::jsonb, %(kwargs)s::jsonb,
    %(options)s::jsonb, %(metadata)s::jsonb, %(idempotency_key)s::text, %(parent_id)s::uuid,
    CASE WHEN alarm_at > now THEN 'SCHEDULED' ELSE 'READY' END,
    CASE WHEN alarm_at > now THEN alarm_at END,
    COALESCE(%(expires_at)s::timestamptz, now + make_interval(secs => %(expires_after_seconds)s::float8)),
    0, '[]', 0, %(max_attempts)s::int, 0, 0, FALSE, 0, '[]', now
FROM (
    SELECT now, COALESCE(%(wake_at)s::timestamptz, now + make_interval(secs => %(wake_after_seconds)s::float8)) AS alarm_at
    FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
    OFFSET 0
) AS moments
RETURNING id, enqueued_at, status

-- Bring moments into the years 1000 to 9899: one before or after them, infinity among them, becomes the nearest there is,
-- so that what was first, last, over or due still is. Where NULL says "never", what comes after them is NULL.
-- Parameters: none. May be run twice. Locks: the rows that it changes.
-- The years leave room for Python's and Django's sums: a rank and its priority x AGING, a time zone.
UPDATE {schema}.jobqueue_task AS task
SET rank = LEAST(GREATEST(rank, first), last),
    enqueued_at = LEAST(GREATEST(enqueued_at, first), last),
    wake_at = CASE
        WHEN wake_at IS NULL OR (wake_at > last AND status <> 'SCHEDULED') THEN NULL
        ELSE LEAST(GREATEST(wake_at, first), last)
    END,
    expires_at = CASE WHEN expires_at <= last THEN GREATEST(expires_at, first) END,
    claimed_at = CASE WHEN claimed_at IS NOT NULL THEN LEAST(GREATEST(claimed_at, first), last) END,
    timeout_at = CASE WHEN timeout_at IS NOT NULL THEN LEAST(GREATEST(timeout_at, first), last) END,
    cancel_requested_at = CASE
        WHEN cancel_requested_at IS NOT NULL THEN LEAST(GREATEST(cancel_requested_at, first), last)
    END,
    started_at = CASE WHEN started_at IS NOT NULL THEN LEAST(GREATEST(started_at, first), last) END,
    last_attempted_at = CASE
        WHEN last_attempted_at IS NOT NULL THEN LEAST(GREATEST(last_attempted_at, first), last)
    END,
    finished_at = CASE WHEN finished_at IS NOT NULL THEN LEAST(GREATEST(finished_at, first), last) END,
    parent_notified_at = CASE WHEN parent_notified_at IS NOT NULL THEN LEAST(GREATEST(parent_notified_at, first), last) END
FROM (VALUES ('1000-01-01 00:00:00+00'::timestamptz, '9899-12-31 00:00:00+00'::timestamptz)) AS calendar (first, last)
WHERE NOT '[1000-01-01 00:00:00+00,9900-01-01 00:00:00+00)'::tstzrange @> ALL (ARRAY[
    rank, wake_at, expires_at, claimed_at, timeout_at, cancel_requested_at, enqueued_at, started_at, last_attempted_at,
    finished_at, parent_notified_at
]);

UPDATE {schema}.jobqueue_inboxmessage AS message
SET sent_at = LEAST(GREATEST(sent_at, first), last),
    consumed_at = CASE WHEN consumed_at IS NOT NULL THEN LEAST(GREATEST(consumed_at, first), last) END
FROM (VALUES ('1000-01-01 00:00:00+00'::timestamptz, '9899-12-31 00:00:00+00'::timestamptz)) AS calendar (first, last)
WHERE NOT '[1000-01-01 00:00:00+00,9900-01-01 00:00:00+00)'::tstzrange @> ALL (ARRAY[sent_at, consumed_at]);

UPDATE {schema}.jobqueue_queue AS queue
SET paused_at = CASE WHEN paused_at IS NOT NULL THEN LEAST(GREATEST(paused_at, first), last) END,
    resume_at = CASE WHEN resume_at <= last THEN GREATEST(resume_at, first) END
FROM (VALUES ('1000-01-01 00:00:00+00'::timestamptz, '9899-12-31 00:00:00+00'::timestamptz)) AS calendar (first, last)
WHERE NOT '[1000-01-01 00:00:00+00,9900-01-01 00:00:00+00)'::tstzrange @> ALL (ARRAY[paused_at, resume_at]);

UPDATE {schema}.jobqueue_executor AS executor
SET started_at = LEAST(GREATEST(started_at, first), last),
    heartbeat = LEAST(GREATEST(heartbeat, first), last)
FROM (VALUES ('1000-01-01 00:00:00+00'::timestamptz, '9899-12-31 00:00:00+00'::timestamptz)) AS calendar (first, last)
WHERE NOT '[1000-01-01 00:00:00+00,9900-01-01 00:00:00+00)'::tstzrange @> ALL (ARRAY[started_at, heartbeat]);

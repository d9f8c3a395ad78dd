-- Delete the oldest counter deltas and return their sums. Does nothing while another session aggregates.
-- Parameters: delta_limit. Index: the primary key, from its beginning.
-- Locks: the deltas; an advisory lock of the counters' table until the transaction ends, if it is free.
WITH guard AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock('jobqueue_counter'::regclass::oid::int, 0) AS is_ours
),
taken AS (
    DELETE FROM jobqueue_counterdelta
    WHERE id = ANY(ARRAY(
        SELECT id FROM jobqueue_counterdelta WHERE (SELECT is_ours FROM guard) ORDER BY id LIMIT %(delta_limit)s
    ))
    RETURNING *
)
SELECT
    count(*), backend, queue_name, task_type, date_trunc('minute', at) AS minute,
    COALESCE(sum(submitted), 0), COALESCE(sum(completed), 0), COALESCE(sum(failed), 0), COALESCE(sum(retries), 0),
    COALESCE(sum(dead), 0), COALESCE(sum(lost), 0), COALESCE(sum(ticks_enqueued), 0), COALESCE(sum(ticks_overlap), 0),
    COALESCE(sum(ticks_paused), 0), COALESCE(sum(ticks_missed), 0), COALESCE(sum(ticks_key), 0),
    COALESCE(sum(attempts), 0), wait_bucket, run_bucket, lateness_bucket,
    COALESCE(sum(wait_seconds), 0), COALESCE(sum(run_seconds), 0), COALESCE(sum(lateness_seconds), 0)
FROM taken
GROUP BY backend, queue_name, task_type, minute, wait_bucket, run_bucket, lateness_bucket

-- Commit plain outcomes: those that change nothing but their own rows.
-- Parameters: outcomes: a JSON list of Outcome, without default values; aging: seconds per point of priority;
--   edges: of the counters' buckets; holder: the executor that made the claims, NULL for any.
-- Index: the primary key. Locks: the rows in id order FOR NO KEY UPDATE. Rows that other sessions have locked are missing
--   from the answer. A row of the answer without a status belongs to another claim. One with a time was not written,
--   because its cancel was requested then. The caller decides whether its journal defers that.
-- Trap: with a thousand ids that the planner can count, it may read the whole table. It cannot count a sub-select.
-- Trap: with `AND status = 'RUNNING'` in the UPDATE's own WHERE, the planner may join through the small partial index
--   of running tasks, in quadratic time (6,000 instead of 60,000 tasks/s with batches of 1,000).
-- Trap: `errors || '[]'` is a new value, and PostgreSQL writes all of it again: 223 kB of WAL for 20 stored errors. With
--   NULL, `||` is not called, and the stored value stays.
WITH given AS (
    SELECT * FROM json_to_recordset(%(outcomes)s::json) AS given (
        task_id uuid, claim_number bigint, status text, attempts int, wake_after_seconds float8, wake_at timestamptz,
        recheck_seconds float8, unread_polls int, stale_polls int, has_succeeded bool, keeps_rank bool, worker_id text,
        run_seconds float8, return_value text, error text, cause text, history text, inner_state text, metadata text, decided text
    )
),
locked AS (
    SELECT
        id, claim_number, status, executor_id, cancel_requested_at, backend, queue_name, task_type, attempts,
        GREATEST(0, date_part('epoch', claimed_at - rank) - priority * %(aging)s::float8) AS wait
    FROM jobqueue_task
    WHERE id = ANY(ARRAY(SELECT task_id FROM given))
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
),
held AS (
    SELECT given.*, backend, queue_name, task_type,
        given.attempts > locked.attempts AND given.status <> 'CANCELLED' AS has_failed,
        CASE WHEN worker_id IS NOT NULL THEN wait END AS waited,
        CASE WHEN worker_id IS NOT NULL THEN run_seconds END AS ran,
        LEAST(wake_at, clock_timestamp() + make_interval(secs => wake_after_seconds)) AS wakes_at,
        COALESCE(decided, given.status) AS entering
    FROM given JOIN locked ON locked.id = given.task_id
    WHERE locked.status = 'RUNNING' AND locked.claim_number = given.claim_number
        AND (%(holder)s::uuid IS NULL OR executor_id = %(holder)s)
        AND (cancel_requested_at IS NULL OR decided IS NOT NULL OR given.status NOT IN ('READY', 'SCHEDULED'))
),
written AS (
    UPDATE jobqueue_task AS task
    SET status = held.entering, attempts = held.attempts, polls = task.polls + (held.has_succeeded IS TRUE)::int,
        claimed_at = NULL, executor_id = NULL, cause = held.cause,
        unread_polls = COALESCE(held.unread_polls, 0), stale_polls = COALESCE(held.stale_polls, 0),
        timed_out = task.timed_out AND held.has_succeeded IS NOT TRUE,
        executor_losses = CASE WHEN held.has_succeeded AND NOT held.ends THEN 0 ELSE task.executor_losses END,
        wake_at = CASE
            WHEN held.entering IN ('SCHEDULED', 'SUSPENDED')
            THEN LEAST(held.wakes_at, clock_timestamp() + make_interval(secs => held.recheck_seconds))
        END,
        timeout_at = CASE
            WHEN held.has_succeeded IS NOT TRUE THEN task.timeout_at
            WHEN held.recheck_seconds IS NOT NULL AND held.entering IN ('READY', 'SUSPENDED')
            THEN held.wakes_at
        END,
        rank = CASE
            WHEN held.entering = 'READY' AND held.keeps_rank IS NOT TRUE
            THEN clock_timestamp() - make_interval(secs => task.priority * %(aging)s::float8) ELSE task.rank
        END,
        finished_at = CASE WHEN held.ends THEN clock_timestamp() END,
        parent_notified_at = COALESCE(
            task.parent_notified_at, CASE WHEN held.ends AND task.parent_id IS NOT NULL THEN clock_timestamp() END
        ),
        worker_ids = COALESCE(CASE
            WHEN held.worker_id IS NULL OR jsonb_array_length(task.worker_ids) < 100 THEN task.worker_ids
            ELSE task.worker_ids - 0
        END || to_jsonb(held.worker_id), task.worker_ids),
        errors = COALESCE(CASE
            WHEN held.error IS NULL OR jsonb_array_length(task.errors) < 20 THEN task.errors ELSE task.errors - 0
        END || held.error::jsonb, task.errors),
        history = COALESCE(right(COALESCE(task.history, '') || held.history, {history_characters}), task.history),
        return_value = COALESCE(held.return_value::jsonb, task.return_value),
        inner_state = COALESCE(held.inner_state::jsonb, task.inner_state),
        metadata = COALESCE(held.metadata::jsonb, task.metadata)
    FROM (SELECT *, entering IN ('SUCCESSFUL', 'FAILED', 'CANCELLED') AS ends FROM held) AS held
    WHERE task.id = held.task_id
    RETURNING task.id, task.status
),
counted AS (
    INSERT INTO jobqueue_counterdelta (
        backend, queue_name, task_type, at, completed, failed, retries, dead, attempts, wait_bucket, run_bucket,
        wait_seconds, run_seconds
    )
    SELECT backend, queue_name, task_type, clock_timestamp(), count(*) FILTER (WHERE entering = 'SUCCESSFUL'),
        count(*) FILTER (WHERE has_failed), count(*) FILTER (WHERE has_failed AND entering = 'SCHEDULED'),
        count(*) FILTER (WHERE entering = 'FAILED'), count(worker_id), width_bucket(waited, edges) AS waits,
        width_bucket(ran, edges) AS runs, sum(waited), sum(ran)
    FROM held, (VALUES (%(edges)s::float8[])) AS b (edges)
    WHERE worker_id IS NOT NULL OR entering = 'FAILED'
    GROUP BY backend, queue_name, task_type, waits, runs
)
SELECT locked.id, COALESCE(written.status, cancel_requested_at::text)
FROM locked LEFT JOIN written USING (id)

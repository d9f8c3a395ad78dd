-- Commit successes that change only their own rows, and there only the columns that every success changes.
-- Parameters: ids, claim_numbers, run_seconds, return_values: of the outcomes, in the same order; return_values: NULL if
--   all are JSON's null; worker_id; aging: seconds per point of priority; edges: of the counters' buckets; holder: the
--   executor that made the claims, NULL for any.
-- Answer: the tasks whose rows it has not written, and whether each belongs to another claim. FALSE: the row is missing,
--   or another session has locked it.
-- Index: the primary key. Locks: the rows in id order FOR NO KEY UPDATE, skipping locked ones.
-- Traps: as in commit.sql, which writes all other outcomes and three times as many columns. A join with the CTE would
--   look up each row in the index by itself, which took half of the statement's time. So one array finds all rows, and
--   one object has their results.
WITH given AS (
    SELECT * FROM unnest(
        %(ids)s::uuid[], %(claim_numbers)s::bigint[], %(run_seconds)s::float8[], %(return_values)s::text[]
    ) AS given (task_id, claim_number, ran, return_value)
),
locked AS (
    SELECT
        id, claim_number, status, executor_id, queue_name, task_type,
        GREATEST(0, date_part('epoch', claimed_at - rank) - priority * %(aging)s::float8) AS waited
    FROM jobqueue_task
    WHERE id = ANY(ARRAY(SELECT task_id FROM given))
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
),
held AS (
    SELECT given.*, queue_name, task_type, waited
    FROM given JOIN locked ON locked.id = given.task_id
    WHERE locked.status = 'RUNNING' AND locked.claim_number = given.claim_number
        AND (%(holder)s::uuid IS NULL OR executor_id = %(holder)s)
),
written AS (
    UPDATE jobqueue_task AS task
    SET status = 'SUCCESSFUL', polls = task.polls + 1, claimed_at = NULL, executor_id = NULL, cause = NULL, unread_polls = 0,
        stale_polls = 0, timed_out = FALSE, wake_at = NULL, timeout_at = NULL, finished_at = clock_timestamp(),
        worker_ids = CASE
            WHEN jsonb_array_length(task.worker_ids) < 100 THEN task.worker_ids ELSE task.worker_ids - 0
        END || (SELECT to_jsonb(%(worker_id)s::text)),
        return_value = CASE
            WHEN %(return_values)s::text[] IS NULL THEN 'null'::jsonb
            ELSE COALESCE((
                SELECT jsonb_object_agg(task_id, return_value::jsonb) FROM given WHERE return_value IS NOT NULL
            ) -> task.id::text, task.return_value)
        END
    WHERE task.id = ANY(ARRAY(SELECT task_id FROM held))
    RETURNING task.id
),
counted AS (
    INSERT INTO jobqueue_counterdelta (
        backend, queue_name, task_type, at, completed, attempts, wait_bucket, run_bucket, wait_seconds, run_seconds
    )
    SELECT %(backend)s, queue_name, task_type, clock_timestamp(), count(*), count(*),
        width_bucket(waited, edges) AS waits, width_bucket(ran, edges) AS runs, sum(waited), sum(ran)
    FROM held, (VALUES (%(edges)s::float8[])) AS place (edges)
    GROUP BY queue_name, task_type, waits, runs
)
SELECT given.task_id, locked.id IS NOT NULL AS is_of_another
FROM given LEFT JOIN written ON written.id = given.task_id LEFT JOIN locked ON locked.id = given.task_id
WHERE written.id IS NULL

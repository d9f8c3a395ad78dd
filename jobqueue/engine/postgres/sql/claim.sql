-- Claim the best READY tasks of some queues for an executor.
-- Parameters: those of open_queue.sql; claim_limit, executor_id, aging; pools, pool_limits: the maximum for each pool;
--   free_slots: for each pool the maximum for a limited queue; last_rank, last_id: the end in order of rank, for many
--   queues from claim_horizon.sql.
-- Index: jobqueue_task_ready, one slice for each queue and pool, in order of rank.
-- Locks: the slices FOR NO KEY UPDATE (FOR UPDATE would collide with a message being sent), skipping locked rows.
-- Trap: the CTE must stay MATERIALIZED; WHERE id IN (SELECT ... LIMIT 5) claimed 2,000 of 2,000 rows under a nested loop.
-- Trap: joined to the CTE instead of looked up by an array, 200 rows of 20,000 were found by reading the whole table.
WITH open_queue AS MATERIALIZED ({open_queue}),
pool AS (
    SELECT name, claim_limit, free_slots
    FROM unnest(%(pools)s::text[], %(pool_limits)s::int[], %(free_slots)s::int[]) AS pool (name, claim_limit, free_slots)
),
head AS MATERIALIZED (
    SELECT of_queue.id, of_queue.rank, of_queue.pool
    FROM open_queue CROSS JOIN LATERAL (
        SELECT slice.id, slice.rank, pool.name AS pool
        FROM pool CROSS JOIN LATERAL (
            SELECT task.id, task.rank
            FROM jobqueue_task AS task
            WHERE task.backend = %(backend)s AND task.queue_name = open_queue.name AND task.pool = pool.name
                AND task.status = 'READY' AND task.executor_losses < {isolation_losses}
                AND (task.rank, task.id) <= (%(last_rank)s::timestamptz, %(last_id)s::uuid)
            ORDER BY task.backend, task.queue_name, task.pool, task.rank, task.id
            LIMIT LEAST(pool.claim_limit, open_queue.max_tasks, CASE WHEN open_queue.is_limited THEN pool.free_slots END)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS slice
        ORDER BY slice.rank, slice.id
        LIMIT open_queue.max_tasks
    ) AS of_queue
)
UPDATE jobqueue_task AS task
SET status = 'RUNNING', claim_number = task.claim_number + 1, executor_id = %(executor_id)s, wake_at = NULL,
    claimed_at = clock_timestamp(), started_at = COALESCE(task.started_at, clock_timestamp()),
    last_attempted_at = clock_timestamp()
WHERE task.id = ANY(ARRAY(
    SELECT best.id
    FROM pool CROSS JOIN LATERAL (
        SELECT head.id, head.rank FROM head WHERE head.pool = pool.name ORDER BY head.rank, head.id LIMIT pool.claim_limit
    ) AS best
    ORDER BY best.rank, best.id
    LIMIT %(claim_limit)s
))
RETURNING task.id, task.task_type, task.queue_name, task.priority, task.args::text, task.kwargs::text,
    task.inner_state::text, task.options::text, task.metadata::text, task.errors::text, task.worker_ids::text,
    task.parent_id, task.key, task.claim_number, task.attempts, task.max_attempts, task.polls, task.executor_losses,
    task.rank, task.enqueued_at, task.started_at, task.claimed_at,
    GREATEST(0, date_part('epoch', task.claimed_at - task.rank) - task.priority * %(aging)s::float8) AS wait_seconds,
    COALESCE(task.expires_at <= task.claimed_at AND task.polls = 0, FALSE) AS is_expired,
    task.unread_polls, task.stale_polls, task.timed_out, task.timeout_at, task.pool,
    task.concurrency_key, task.rate_key

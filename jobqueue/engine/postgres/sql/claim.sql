-- Hand the best READY tasks of some queues to an executor; paused queues are left out, and those with a limit whose rows
-- the transaction has not locked: what ran before the lock is not known.
-- Parameters: backend, queues, claim_limit, executor_id, aging;
--   last_rank, last_id: none behind this one in order of rank is taken (claim_horizon.sql tells how far down the best of many queues
--   reach; without it, 20 rows of each of 100 queues were locked for a claim of 100, in every one of its 6 ms);
--   most: for each of the queues in turn how many to take, NULL or no entry for any number; locked: names;
--   only, but: task types to take or to leave, NULL for no restriction;
--   depth: NULL where neither restricts; else among how many of each queue they are looked for (past five million
--   READY tasks of other types a claim read for 3 s, and found none);
--   suspects: take only tasks that lost executors before, instead of only the others.
-- Index: jobqueue_task_ready, a slice per queue, in order of rank.
-- Locks: the slices FOR NO KEY UPDATE (FOR UPDATE would collide with a message being sent), skipping locked rows.
-- A picky claim reads what lies nearest without a lock, and locks one by one what it takes: a lock beside the limit would
-- lock all that is read. Not so the others: stepping over what others hold would take a look into the primary key each.
-- Trap: the CTE must stay MATERIALIZED; WHERE id IN (SELECT ... LIMIT 5) claimed 2,000 of 2,000 rows under a nested loop.
-- Trap: joined to the CTE instead of looked up by an array, 200 rows of 20,000 were found by reading the whole table.
WITH open_queue AS MATERIALIZED (
    SELECT asked.name, asked.most
    FROM unnest(%(queues)s::text[], %(most)s::int[]) AS asked (name, most)
    WHERE asked.name NOT IN (
        SELECT queue.name
        FROM jobqueue_queue AS queue
        WHERE queue.backend = %(backend)s AND queue.name = ANY(%(queues)s::text[]) AND (
            (queue.paused_at IS NOT NULL AND (queue.resume_at IS NULL OR queue.resume_at > clock_timestamp()))
            OR (queue.max_running IS NOT NULL AND queue.name <> ALL(%(locked)s::text[]))
        )
    )
),
slice AS MATERIALIZED (
    SELECT head.id, head.rank
    FROM open_queue
    CROSS JOIN LATERAL (
        SELECT task.id, task.rank
        FROM jobqueue_task AS task
        WHERE %(depth)s::int IS NULL
            AND task.backend = %(backend)s AND task.queue_name = open_queue.name AND task.status = 'READY'
            AND (task.executor_losses >= 2) = %(suspects)s::bool
            AND (task.rank, task.id) <= (%(last_rank)s::timestamptz, %(last_id)s::uuid)
        ORDER BY task.backend, task.queue_name, task.rank, task.id
        LIMIT LEAST(%(claim_limit)s::int, open_queue.most)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
),
picky_slice AS MATERIALIZED (
    SELECT head.id, head.rank
    FROM open_queue
    CROSS JOIN LATERAL (
        SELECT near.id, near.rank
        FROM (
            SELECT task.id, task.rank, task.task_type
            FROM jobqueue_task AS task
            WHERE %(depth)s::int IS NOT NULL
                AND task.backend = %(backend)s AND task.queue_name = open_queue.name AND task.status = 'READY'
                AND (task.executor_losses >= 2) = %(suspects)s::bool
                AND (task.rank, task.id) <= (%(last_rank)s::timestamptz, %(last_id)s::uuid)
            ORDER BY task.backend, task.queue_name, task.rank, task.id
            LIMIT %(depth)s::int
        ) AS near
        CROSS JOIN LATERAL (
            SELECT FROM jobqueue_task AS task
            WHERE task.id = near.id AND task.status = 'READY'
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS held
        WHERE (%(only)s::text[] IS NULL OR near.task_type = ANY(%(only)s::text[]))
            AND (%(but)s::text[] IS NULL OR near.task_type <> ALL(%(but)s::text[]))
        ORDER BY near.rank, near.id
        LIMIT LEAST(%(claim_limit)s::int, open_queue.most)
    ) AS head
),
picked AS MATERIALIZED (
    SELECT id
    FROM (SELECT id, rank FROM slice UNION ALL SELECT id, rank FROM picky_slice) AS found
    ORDER BY rank, id
    LIMIT %(claim_limit)s
)
UPDATE jobqueue_task AS task
SET status = 'RUNNING', claim_number = task.claim_number + 1, executor_id = %(executor_id)s, wake_at = NULL,
    claimed_at = clock_timestamp(), started_at = COALESCE(task.started_at, clock_timestamp()),
    last_attempted_at = clock_timestamp()
WHERE task.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING task.id, task.task_type, task.queue_name, task.priority, task.args::text, task.kwargs::text,
    task.inner_state::text, task.options::text, task.metadata::text, task.errors::text, task.worker_ids::text,
    task.parent_id, task.key, task.claim_number, task.attempts, task.max_attempts, task.polls, task.executor_losses,
    task.rank, task.enqueued_at, task.started_at, task.claimed_at,
    GREATEST(
        0, EXTRACT(EPOCH FROM task.claimed_at - task.rank) - task.priority * %(aging)s::float8
    )::float8 AS wait_seconds,
    COALESCE(task.expires_at <= task.claimed_at AND task.polls = 0, FALSE) AS is_expired,
    task.unread_polls, task.stale_polls, task.timed_out, task.timeout_at

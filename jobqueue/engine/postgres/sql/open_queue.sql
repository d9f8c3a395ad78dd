-- Select the queues that may be claimed from: not paused, and without a max_running unless this transaction has locked
-- their rows. Without the lock, the number of running tasks is unknown. Part of claim.sql and claim_horizon.sql.
-- Parameters: backend; queues; max_tasks: the maximum for each queue, or NULL; limited: queues with locked rows.
-- Index: jobqueue_queue_name. Locks: none.
SELECT asked.name, asked.max_tasks, asked.name = ANY(%(limited)s::text[]) AS is_limited
FROM unnest(%(queues)s::text[], %(max_tasks)s::int[]) AS asked (name, max_tasks)
WHERE asked.name NOT IN (
    SELECT queue.name FROM jobqueue_queue AS queue
    WHERE queue.backend = %(backend)s AND queue.name = ANY(%(queues)s::text[]) AND (
        {is_paused} OR (queue.max_running IS NOT NULL AND queue.name <> ALL(%(limited)s::text[]))
    )
)

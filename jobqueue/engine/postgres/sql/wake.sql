-- Make SUSPENDED tasks READY, of those that this transaction has locked, and name them.
-- Parameters: ids; aging: seconds per point of priority.
-- Index: the primary key. Locks: the rows, which are locked already.
-- Trap: `AND status = 'SUSPENDED'` in the UPDATE's own WHERE lets the planner walk the partial index of all sleepers.
WITH locked AS MATERIALIZED (
    SELECT id, status
    FROM jobqueue_task
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[])))
)
UPDATE jobqueue_task AS task
SET status = 'READY', rank = clock_timestamp() - make_interval(secs => task.priority * %(aging)s::float8), wake_at = NULL
FROM locked
WHERE task.id = locked.id AND locked.status = 'SUSPENDED'
RETURNING task.id

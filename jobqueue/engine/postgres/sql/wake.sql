-- Make the SUSPENDED ones of some tasks READY, or BLOCKED if they have a limit. Return their ids and statuses.
-- Parameters: ids: of tasks that this transaction has locked; aging: seconds per point of priority.
-- Index: the primary key. Locks: the rows, which are locked already.
-- Trap: with `AND status = 'SUSPENDED'` in the UPDATE's own WHERE, the planner may read the index of all SUSPENDED tasks.
WITH locked AS MATERIALIZED (
    SELECT id, status FROM jobqueue_task WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[])))
)
UPDATE jobqueue_task AS task
SET status = {ready_status}, rank = clock_timestamp() - make_interval(secs => task.priority * %(aging)s::float8), wake_at = NULL
FROM locked
WHERE task.id = locked.id AND locked.status = 'SUSPENDED'
RETURNING task.id, task.status

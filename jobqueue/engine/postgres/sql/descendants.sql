-- Return the live tasks below others: children, their children, and so on, also below tasks that have ended, but not
-- below batches, which may have a million members and cancel them themselves.
-- Parameters: backend, ids. Index: jobqueue_task_children, one step per task. Locks: none.
-- Trap: OFFSET 0 prevents a join, which read the whole table below a hundred parents.
-- Trap: with `parent_id = below.id`, the statistics of a table that is one family let the planner read the whole table
--   for each child. It has no statistics for a range between unknown ends.
WITH RECURSIVE below AS (
    SELECT
        asked.id, FALSE AS is_alive,
        (SELECT task.task_type = 'jobqueue.batch' FROM jobqueue_task AS task WHERE task.id = asked.id) AS is_batch
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    UNION
    SELECT child.id, child.is_alive, child.is_batch
    FROM below CROSS JOIN LATERAL (
        SELECT task.id, task.finished_at IS NULL AS is_alive, task.task_type = 'jobqueue.batch' AS is_batch
        FROM jobqueue_task AS task
        WHERE task.parent_id >= below.id AND task.parent_id <= below.id AND task.backend = %(backend)s OFFSET 0
    ) AS child
    WHERE below.is_batch IS NOT TRUE
)
SELECT id FROM below WHERE is_alive

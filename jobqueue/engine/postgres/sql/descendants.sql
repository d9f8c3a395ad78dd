-- Return the live tasks below others: children, their children, and so on, also below tasks that have ended.
-- Parameters: backend, ids. Index: jobqueue_task_children, one step per task. Locks: none.
-- Trap: OFFSET 0 prevents a join, which read the whole table below a hundred parents.
-- Trap: with `parent_id = below.id`, the statistics of a table that is one family let the planner read the whole table
--   for each child. It has no statistics for a range between unknown ends.
WITH RECURSIVE below AS (
    SELECT asked.id, FALSE AS is_alive FROM unnest(%(ids)s::uuid[]) AS asked (id)
    UNION
    SELECT child.id, child.is_alive
    FROM below CROSS JOIN LATERAL (
        SELECT task.id, task.finished_at IS NULL AS is_alive
        FROM jobqueue_task AS task
        WHERE task.parent_id >= below.id AND task.parent_id <= below.id AND task.backend = %(backend)s OFFSET 0
    ) AS child
)
SELECT id FROM below WHERE is_alive

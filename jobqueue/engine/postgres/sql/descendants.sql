-- Name the living tasks below others: their children and theirs, also below those that have ended.
-- Parameters: ids; backend. Index: jobqueue_task_children, one step per task. Locks: none.
-- Trap: OFFSET 0 keeps the planner from joining, for which it read the whole table below a hundred parents.
WITH RECURSIVE below AS (
    SELECT asked.id, FALSE AS is_alive
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    UNION
    SELECT child.id, child.is_alive
    FROM below
    CROSS JOIN LATERAL (
        SELECT task.id, task.finished_at IS NULL AS is_alive
        FROM jobqueue_task AS task
        WHERE task.parent_id = below.id AND task.backend = %(backend)s
        OFFSET 0
    ) AS child
)
SELECT id
FROM below
WHERE is_alive

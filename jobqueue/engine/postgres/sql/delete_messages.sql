-- Delete the messages of tasks that are pruned. No other session changes them after their task has ended.
-- Parameters: ids: of tasks that this transaction has locked. Index: jobqueue_inbox_task, then the primary key.
-- Locks: the messages.
-- Trap: with `task_id = ANY(...)`, the planner reads the whole table beside a large inbox. See count_unread.sql.
DELETE FROM jobqueue_inboxmessage
WHERE id = ANY(ARRAY(
    SELECT message.id
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    CROSS JOIN LATERAL (
        SELECT id FROM jobqueue_inboxmessage WHERE task_id >= asked.id AND task_id <= asked.id OFFSET 0
    ) AS message
))
